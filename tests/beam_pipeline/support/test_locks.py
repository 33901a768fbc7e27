"""Locks that neither a fork nor an interrupt leaves locked."""

import contextlib
import ctypes
import os
import signal
import threading
import time

import pytest

from beam_pipeline.support.locks import ForkableLock


def test_an_interrupt_while_a_thread_waits_does_not_leave_the_lock_locked():
    lock = ForkableLock()

    def wait() -> None:
        with contextlib.suppress(SystemExit), lock.held:
            pass

    for _ in range(20):
        with lock.held:
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.005)
            interrupt = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), interrupt)
        thread.join()
        assert not lock.held.locked()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork while another thread runs
def test_a_lock_that_another_thread_holds_is_free_after_a_fork():
    lock, is_held, may_end = ForkableLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # instead of waiting forever
        with lock.held:
            os._exit(0)
    may_end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
