"""Child processes that cannot outlive this one, not even when it is killed with SIGKILL.

Linux sends a process the signal it asked for when its parent dies. Precisely: when the *thread* that forked
it ends, which is why children are started from the main thread only. Other systems have no such promise;
there a child outlives a parent that was killed hard.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(with_signal: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` for `subprocess`: the child gets `with_signal` as soon as this process is gone.

    `None` where the system cannot do it. Raises `RuntimeError` off the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a leashed process must be started from the main thread: it dies with its thread")
    if sys.platform != "linux":
        return None
    # Everything is looked up before the fork: the child of a threaded process may hardly do anything.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()
    number = int(with_signal)

    def hold() -> None:
        if prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(127)  # the parent died before the promise was made

    return hold
