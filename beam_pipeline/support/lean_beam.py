"""Imports Apache Beam quietly, and without the optional libraries that this program does not use through it.

`import apache_beam` takes some 4.5 s of CPU, half of it for pandas (Beam's data frames) and the clients of BigQuery,
Pub/Sub and MongoDB, which Beam imports if they are installed. Each process of a local run pays for that.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.abc import MetaPathFinder

_UNUSED_MODULES = (
    "bson",
    "pymongo",
    "pandas",
    "google.cloud.bigquery",
    "google.cloud.bigquery_storage_v1",
    "google.cloud.pubsub",
)


class _AbsentModules(MetaPathFinder):
    """Makes imports of the unused libraries fail as if they were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in _UNUSED_MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def import_beam(*, lean: bool = True) -> None:
    """Imports Beam, which would log warnings of libraries that are not installed.

    Args:
        lean: Without the unused libraries, for a run on this machine. Afterwards they can be imported as usual.
    """
    if "apache_beam" not in sys.modules:
        with _quiet(), _without_unused_modules() if lean else nullcontext():
            import apache_beam  # noqa: F401


@contextmanager
def _quiet() -> Iterator[None]:
    """Discards what is logged, unless the process has handlers for it. Without any, Beam's warnings would add one."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextmanager
def _without_unused_modules() -> Iterator[None]:
    finder = _AbsentModules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
