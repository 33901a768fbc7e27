"""A lock for objects that are used in forked processes, too."""

from __future__ import annotations

import os
import threading
import weakref


class ForkableLock:
    """A lock that is free in a forked process, where the thread that held it does not go on: `with lock.held:`."""

    def __init__(self) -> None:
        self.held = threading.Lock()
        """The lock itself. An interrupt may come within any Python function, even one that has just acquired a lock,
        but not between the acquisition by this object and the block that releases it.
        """
        _LOCKS.add(self)

    def free(self) -> None:
        """Frees the lock, in a forked process."""
        self.held = threading.Lock()


_LOCKS: weakref.WeakSet[ForkableLock] = weakref.WeakSet()


def _free_all() -> None:
    for lock in list(_LOCKS):
        lock.free()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
