"""Threads of a run, which end when it is interrupted; other threads of the program do not."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Starts a thread of the same run as this one. A run's threads have the name of the one that runs its pipeline."""
    thread = threading.Thread(target=work, daemon=True, name=threading.current_thread().name)
    thread.start()
    return thread
