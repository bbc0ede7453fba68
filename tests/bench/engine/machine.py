"""The machine while something runs on it: processor, cores, time and memory of a process tree, and of the others."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")

# Until the machine is this quiet, or this time has passed, no run starts.
_QUIET_SHARE = 0.03
_QUIET_WINDOW_S = 1.0


def cores() -> list[int]:
    """Returns the cores that this process may use, and every peer with it."""
    return sorted(os.sched_getaffinity(0))


def processor() -> str:
    """Returns the processor's name."""
    for line in _PROC.joinpath("cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def multiplies_bf16() -> bool:
    """Whether the processor has products of bf16; elsewhere libraries emulate them, slower than those of f32."""
    flags = _PROC.joinpath("cpuinfo").read_text(encoding="utf-8").split()
    return "avx512_bf16" in flags or "bf16" in flags


def tree(root: int) -> list[int]:
    """Returns the living processes that come from `root`, itself first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def tree_cpu_s(root: int) -> float:
    """Returns the processor time of the tree, its children that have ended among it."""
    ticks = 0
    for pid in tree(root):
        if fields := _stat_fields(pid):
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_S


def tree_peak_bytes(root: int) -> int:
    """Sums what each living process of the tree had resident at its peak; pages that they share count twice."""
    total = 0
    for pid in tree(root):
        try:
            status = (_PROC / str(pid) / "status").read_text(encoding="utf-8")
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


def forget_peaks(root: int) -> None:
    """Makes the peaks of the tree begin with what is resident now."""
    for pid in tree(root):
        try:
            (_PROC / str(pid) / "clear_refs").write_text("5", encoding="ascii")
        except OSError:
            continue


def _stat_fields(pid: int) -> list[str] | None:
    """Returns the fields of `/proc/PID/stat` behind the name, which may have blanks in it."""
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except OSError:
        return None


@dataclass(frozen=True)
class _Times:
    """Seconds since the machine started, summed over its cores."""

    busy: float
    stolen: float

    @classmethod
    def now(cls) -> _Times:
        with _PROC.joinpath("stat").open(encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (
                int(field) / _TICKS_PER_S for field in file.readline().split()[1:]
            )
        return cls(user + nice + system + irq + softirq, steal)


class Span:
    """A stretch of time, from its making to `end`."""

    def __init__(self) -> None:
        self._times = _Times.now()
        self._own_cpu_s = time.process_time()
        self._start = time.perf_counter()

    def end(self, peer_cpu_s: float) -> tuple[float, float]:
        """Returns the seconds gone by, and the share of the machine that neither this process nor the peer had.

        `peer_cpu_s` is what the peer used meanwhile. Time that the hypervisor gave to others counts as theirs.
        """
        wall_s = time.perf_counter() - self._start
        times = _Times.now()
        own_cpu_s = time.process_time() - self._own_cpu_s
        others = times.busy - self._times.busy - own_cpu_s - peer_cpu_s
        stolen = times.stolen - self._times.stolen
        machine_s = wall_s * (os.cpu_count() or 1)
        return wall_s, max(0.0, others + stolen) / machine_s


def wait_until_quiet(timeout_s: float) -> None:
    """Waits until other processes do next to nothing, but no longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        span = Span()
        time.sleep(_QUIET_WINDOW_S)
        if span.end(peer_cpu_s=0.0)[1] < _QUIET_SHARE:
            return
