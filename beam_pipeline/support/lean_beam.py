"""Imports Apache Beam without the optional libraries that this program does not use through it.

`import apache_beam` takes some 4.5 s of CPU, half of it for pandas (Beam's data frames) and the clients of BigQuery,
Pub/Sub and MongoDB, which Beam imports if they are installed. Each process of a local run pays for that.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder

_UNUSED_MODULES = (
    "bson",
    "pymongo",
    "pandas",
    "google.cloud.bigquery",
    "google.cloud.bigquery_storage_v1",
    "google.cloud.pubsub",
)
_ANNOUNCES_ABSENCE = "apache_beam.io.mongodbio"


class _AbsentModules(MetaPathFinder):
    """Makes imports of the unused libraries fail as if they were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in _UNUSED_MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def import_beam() -> None:
    """Imports Beam for a run on this machine. Afterwards the unused libraries can be imported as usual."""
    if "apache_beam" not in sys.modules:
        with _without_unused_modules():
            import apache_beam  # noqa: F401


@contextmanager
def _without_unused_modules() -> Iterator[None]:
    finder, log = _AbsentModules(), logging.getLogger(_ANNOUNCES_ABSENCE)
    sys.meta_path.insert(0, finder)
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False
        sys.meta_path.remove(finder)
