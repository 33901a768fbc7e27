"""A configuration as the flat parameters that trackers show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# In a URL: a user with a password, and a query, such as the signature of a signed URL.
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=\?)[^\s\"',]+")


def parameters(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns name → number, string or None, without what URLs have to let their readers in.

    Example:
        {"train": {"steps": 3, "sizes": [1, 2]}} → {"train.steps": 3, "train.sizes": "[1, 2]"}
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= parameters(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, bool | int | float):
            flat[f"{prefix}{name}"] = value
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[f"{prefix}{name}"] = without_secrets(text)
    return flat


def without_secrets(text: str) -> str:
    """Hides users, passwords and queries of URLs."""
    return _QUERY.sub("…", _USER.sub("…@", text)) if "://" in text else text
