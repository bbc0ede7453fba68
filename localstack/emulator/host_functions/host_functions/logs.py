"""What a function writes, and the lines that Lambda adds around each event."""

from __future__ import annotations

import threading
from typing import IO

# Lines kept of one environment, for messages about a failed start.
_LINES_KEPT = 2000


class LogBuffer:
    """Collects lines of one process, and those of the event in work apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: list[str] = []
        self._event: list[str] | None = None

    def pump(self, stream: IO[bytes]) -> None:
        """Reads lines until the process closes its output."""
        for raw in stream:
            self.add(raw.decode(errors="replace"))

    def add(self, line: str) -> None:
        """Takes one line, with its end."""
        with self._lock:
            self._recent.append(line)
            del self._recent[:-_LINES_KEPT]
            if self._event is not None:
                self._event.append(line)

    def begin(self, first: str) -> None:
        """Starts the log of an event."""
        with self._lock:
            self._event = [first]

    def end(self) -> str:
        """Ends the log of an event and returns it."""
        with self._lock:
            lines, self._event = self._event or [], None
        return "".join(lines)

    def text(self) -> str:
        """Returns the latest lines."""
        with self._lock:
            return "".join(self._recent)


def report(request_id: str, *, duration_ms: float, memory_mb: int, memory_size_mb: int, status: str) -> str:
    """Returns the END and REPORT lines of an event; `status` is empty, `error` or `timeout`."""
    ending = f"\tStatus: {status}" if status else ""
    return (
        f"END RequestId: {request_id}\n"
        f"REPORT RequestId: {request_id}\tDuration: {duration_ms:.2f} ms\t"
        f"Billed Duration: {int(duration_ms) + 1} ms\tMemory Size: {memory_size_mb} MB\t"
        f"Max Memory Used: {memory_mb} MB{ending}\n"
    )


def peak_memory_mb(pid: int) -> int:
    """Returns the most memory that a process held, 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) // 1024
    except OSError:
        pass
    return 0
