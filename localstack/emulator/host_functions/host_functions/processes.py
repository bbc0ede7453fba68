"""Starts processes that die with LocalStack.

Linux sends the parent-death signal when the *thread* that forked ends, so that all processes are started by
one thread that never ends.
"""

from __future__ import annotations

import ctypes
import queue
import signal
import subprocess
import threading
from concurrent.futures import Future
from functools import cache
from typing import Any

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent thread ends. Runs between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Spawner:
    """The thread that starts all processes."""

    def __init__(self) -> None:
        self._orders: queue.Queue[tuple[dict[str, Any], Future[subprocess.Popen[bytes]]]] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True, name="function-spawner").start()

    def spawn(self, **popen: Any) -> subprocess.Popen[bytes]:
        """Starts a process with the arguments of `subprocess.Popen`; raises what that raises."""
        started: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((popen, started))
        return started.result()

    def _serve(self) -> None:
        while True:
            popen, started = self._orders.get()
            _settle(started, popen)


def _settle(future: Future[subprocess.Popen[bytes]], popen: dict[str, Any]) -> None:
    try:
        future.set_result(subprocess.Popen(preexec_fn=die_with_parent, **popen))
    except Exception as error:  # handed to the thread that asked
        future.set_exception(error)


@cache
def spawner() -> Spawner:
    """Returns the one spawner of this process."""
    return Spawner()
