"""The running processes of this machine, the descendants of one, and the memory of this one."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import subprocess
from pathlib import Path

_NEW_OBJECTS_PER_COLLECTION = 50_000

# Options of glibc's mallopt (malloc.h), and the largest values that it accepts.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_TRIM, _MOST_MMAP = 2**31 - 1, 32 << 20
_ARENAS = 1


def collect_garbage_rarely() -> None:
    """Makes Python search for garbage cycles after 50,000 new objects instead of 700.

    Imports and parsed records are many small objects without cycles, and the searches took a tenth of the CPU of a run.
    The three searches at exit, 0.4 s of CPU after importing Beam, find nothing if all objects are exempt.
    """
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
    atexit.register(gc.freeze)


def keep_freed_memory() -> None:
    """Makes glibc reuse the memory of freed arrays instead of returning it to the system.

    The system clears each page that it provides, which took a tenth of the CPU of a run with two threads. Call it
    before there are threads. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_MMAP_THRESHOLD, _MOST_MMAP)
        mallopt(_TRIM_THRESHOLD, _MOST_TRIM)


def descendants(ancestor: int) -> list[int]:
    """Returns the ids of all running processes below `ancestor`: its children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    pids = [ancestor]
    for pid in pids:  # grows while it is iterated over
        pids += children.pop(pid, [])
    return pids[1:]


def kill_descendants(ancestor: int) -> None:
    """Kills all processes below `ancestor` with SIGKILL, so that they write nothing more."""
    for pid in descendants(ancestor):
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> list[str]:
    """Returns the words of a process's command; none if it has ended."""
    if not Path("/proc/self/cmdline").exists():  # macOS
        listing = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
        return listing.stdout.split()
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _processes() -> list[tuple[int, int]]:
    """Returns the process id and the parent's process id of each running process."""
    if not Path("/proc/self/stat").exists():  # macOS
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        ).stdout
        return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.splitlines())]
    pids_and_parents = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended in the meantime
            # "PID (NAME) STATE PARENT …"; a name may contain any characters, including ")"
            pids_and_parents.append(
                (int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1]))
            )
    return pids_and_parents
