"""The kind of error a user can mend. Everything else is a bug and shows its traceback."""

from __future__ import annotations


class UsageError(Exception):
    """The options, the data, the tokenizer or a folder do not fit; the message says which, where and what to do."""
