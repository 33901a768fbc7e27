"""Settings for all tests: reproducible property tests without deadlines, and the option `--wide`."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings

settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--wide",
        default="none",
        metavar="none|all|K/N",
        help="the tests marked `wide` to run: none, all, or every N-th from the K-th on (default: none)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the wide cases that `--wide` does not name."""
    value = config.getoption("wide")
    part = re.fullmatch(r"(\d+)/([1-9]\d*)", value)
    if value not in ("none", "all") and not part:
        raise pytest.UsageError(f"--wide is {value!r}; it must be none, all, or two numbers such as 3/12")
    wide_items = [item for item in items if item.get_closest_marker("wide")]
    step = int(part[2]) if part else 1
    chosen_items = [] if value == "none" else wide_items[int(part[1]) % step if part else 0 :: step]
    deselected = set(wide_items) - set(chosen_items)
    if deselected:
        config.hook.pytest_deselected(items=list(deselected))
        items[:] = [item for item in items if item not in deselected]
