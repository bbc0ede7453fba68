"""Peers that are Python libraries: a script in their own environment keeps the model loaded (`peers/service.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import machine
from ..workloads import Workload
from . import Answer, ContenderFailure, Timing


class PythonPeer:
    """A library behind a script of `peers/`, started at its first run and kept over all others."""

    is_peer = True

    def __init__(
        self, name: str, precision: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.precision = name, precision
        self._command, self._environment, self._log = list(command), dict(environment), log
        self._process: subprocess.Popen[str] | None = None
        self._load_s = 0.0

    def run(self, workload: Workload, folder: Path) -> Timing:
        """Runs the file in the loaded process, which forgets its caches before."""
        process = self._process or self._start()
        bodies = [line.body(workload.name) for line in workload.lines]
        machine.forget_peaks(process.pid)
        cpu_before_s = machine.tree_cpu_s(process.pid)
        span = machine.Span()
        reply = self._ask(process, {"bodies": bodies})
        _, others_share = span.end(machine.tree_cpu_s(process.pid) - cpu_before_s)
        answers = tuple(Answer(**answer) for answer in reply["answers"])
        if len(answers) != len(bodies):
            raise ContenderFailure(f"{self.name} gave {len(answers)} answers to {len(bodies)} lines")
        return Timing(reply["wall_s"], self._load_s, others_share, machine.tree_peak_bytes(process.pid), answers)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is None:
            return
        processes = machine.tree(self._process.pid)
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        started = time.perf_counter()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self._environment,
            )
        self._read(self._process)
        self._load_s = time.perf_counter() - started
        return self._process

    def _ask(self, process: subprocess.Popen[str], question: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin, "opened as a pipe"
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailure(f"{self.name} has ended; its log is {self._log}") from None
        return self._read(process)

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout, "opened as a pipe"
        line = process.stdout.readline()
        if not line:
            raise ContenderFailure(f"{self.name} has ended; its log is {self._log}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ContenderFailure(f"{self.name}: {reply['error']}; its log is {self._log}")
        return reply
