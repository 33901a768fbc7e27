"""Worker processes end with their launcher, however that ends. As a program: Beam's worker of a local run.

python -m beam_pipeline.worker_process LAUNCHER      (the process id)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    """Runs Beam's worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, too, which ends its workers
    end_with(int(sys.argv[1]))

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def end_with(launcher: int) -> None:
    """Makes this process end as soon as its parent does, by any means.

    Args:
      launcher: the process id of the parent.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(launcher,), daemon=True).start()
    if os.getppid() != launcher:  # it ended before
        os._exit(1)


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


if __name__ == "__main__":
    main()
