"""Runs the tests of records with the compiled decoder, and with NumPy alone, as without a C compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokenmill_reader import examples


@pytest.fixture(params=["compiled", "numpy"], scope="module")
def decoder(request: pytest.FixtureRequest) -> Iterator[str]:
    """The decoder that new datasets use."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(examples, "library", lambda: None)
        yield request.param
