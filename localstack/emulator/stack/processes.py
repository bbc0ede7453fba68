"""Child processes: each with a log file, its own process group, and an end.

The command makes itself the reaper of orphans, so that a function whose emulator was killed is found too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure import StackFailure

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOG_TAIL_LINES = 25

# What a program needs of this machine; nothing else is passed to an emulator, and so to functions.
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def clean_environment(home: Path, **extra: str) -> dict[str, str]:
    """Returns the variables that any program needs, and `extra`.

    `home` is a folder of the stack: the AWS profiles of whoever runs it are none of an emulator's business.
    """
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)} | extra


@dataclass(frozen=True)
class Child:
    """A running process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_essential: bool
    grace_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raises when the process has ended, with the end of its log."""
        code = self.process.poll()
        if code is not None:
            raise StackFailure(f"{self.name} ended with {code}:\n{log_tail(self.log)}")


class Children:
    """All processes of a stack, ended in reverse order of their start."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path,
        is_essential: bool = True,
        grace_s: float = 15,
    ) -> Child:
        """Starts a process that writes to `log`; at the end it has `grace_s` to end by itself."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        child = Child(name, process, log, is_essential, grace_s)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises when a process has ended that the rest cannot do without."""
        for child in self._children:
            if child.is_essential:
                child.check()

    def pids(self) -> dict[str, int]:
        return {child.name: child.pid for child in self._children}

    def logs(self) -> dict[str, str]:
        return {child.name: str(child.log) for child in self._children}

    def stop(self) -> None:
        """Ends all processes and whatever they left behind."""
        for child in reversed(self._children):
            _end(child.process, child.grace_s)
        self._children.clear()
        _end_orphans()


def wait_until(ready: Callable[[], bool], *, what: str, timeout_s: float, check: Callable[[], None]) -> None:
    """Waits for something outside this process; `check` raises when waiting is in vain."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise StackFailure(f"{what} was not ready after {timeout_s:.0f} s")
        time.sleep(0.1)


def log_tail(log: Path) -> str:
    """Returns the end of a log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_LOG_TAIL_LINES:])


def _prctl(option: int, value: int) -> None:
    # Linux only; elsewhere children end by the ordered way down alone.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        process.wait()


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _end_orphans() -> None:
    # Killing a process hands its children to this one, so that each round goes one level deeper.
    for _ in range(20):
        children = _own_children()
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def _own_children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in path.read_text().split()]
    except OSError:
        return []
