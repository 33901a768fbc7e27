"""A lock for objects that are used in forked processes, too."""

from __future__ import annotations

import os
import threading
import weakref


class ForkableLock:
    """A lock that is free in a forked process, where the thread that held it does not go on. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def free(self) -> None:
        """Frees the lock, in a forked process."""
        if self._lock.locked():
            self._lock = threading.Lock()


_LOCKS: weakref.WeakSet[ForkableLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_LOCKS):
        lock.free()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
