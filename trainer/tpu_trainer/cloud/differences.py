"""What a resource that exists has that a command would request otherwise, for its message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import yaml

_MAX_DIFFERENCES = 5
_SHOWN = 200  # characters of a value


def differences(ours: Any, theirs: Any) -> str:
    """Returns where two JSON values differ first, as `name is A there and B here; …`; empty if they do not.

    Only what `ours` has is compared, without labels: Google Cloud adds its defaults.
    """
    first = islice(_compare("", theirs, ours), _MAX_DIFFERENCES)
    return "; ".join(
        f"{name} is {_shown(there)} there and {_shown(here)} here" for name, there, here in first
    )


def parsed(text: str) -> Any:
    """Returns the options in a configuration of `fit`; the text itself if it is not YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _compare(name: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key != "labels":
                yield from _compare(f"{name}.{key}" if name else key, theirs.get(key), value)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (there, here) in enumerate(zip(theirs, ours, strict=True)):
            yield from _compare(f"{name}[{number}]", there, here)
    elif ours != theirs:
        yield name, theirs, ours
