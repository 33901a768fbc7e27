"""How a tokenizer writes conversations: its chat templates, and what they need."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from beam_pipeline.conversations.targets import LossOn
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer


@dataclass(frozen=True)
class ChatFormat:
    """How a tokenizer writes conversations, and which of their tokens are targets."""

    templates: Mapping[str, str]
    """The chat templates by name. `default` is there, and perhaps `tool_use` for conversations with tools."""
    variables: Mapping[str, str]
    """The tokenizer's special tokens by name, e.g. eos_token."""
    date: str | None
    """The day that `strftime_now` is told, as YYYY-MM-DD."""
    loss_on: LossOn
    """The messages that are targets."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the templates, in hex."""
        return hashlib.sha256(json.dumps(self.templates, sort_keys=True).encode()).hexdigest()


def chat_format(tokenizer: TokenizerDescription, *, loss_on: LossOn, date: str | None) -> ChatFormat:
    """Returns the format of a tokenizer's conversations.

    Raises:
        UsageError: If it has no chat template.
    """
    templates = tokenizer.chat_templates
    if "default" not in templates:
        raise UsageError(
            "--tokenizer: has no chat template, which --content conversation needs; give one by --chat_template FILE, "
            "e.g. that of a model whose control tokens this tokenizer has"
        )
    token_of = load_tokenizer(tokenizer.json).tokenizer.id_to_token
    variables = {
        f"{name}_token": token_of(number)
        for name, number in tokenizer.special_token_ids.items()
        if number is not None
    }
    return ChatFormat(templates, variables, date, loss_on)
