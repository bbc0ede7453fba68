"""llama.cpp's server, fed over keep-alive connections with twice as many requests as it has slots."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from .. import machine
from ..workloads import Workload
from . import Answer, ContenderFailure, Timing
from .nightshift import answer_of

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 120
_ANSWER_TIMEOUT_S = 3_600
# Where prompts are long, or begin alike, fewer slots are faster: its prefix reuse is per slot.
_SLOTS = {"shared": 8, "long": 8}
_SLOTS_USUAL = 128
_CONTEXT_STEP = 256


class LlamaServer:
    """A new server for each run, so that no prompt cache survives."""

    is_peer = True

    def __init__(self, name: str, precision: str, program: Path, model: Path, threads: int) -> None:
        self.name, self.precision = name, precision
        self._program, self._model, self._threads = program, model, threads

    def run(self, workload: Workload, folder: Path) -> Timing:
        """Starts a server, waits until it has answered twice, and sends the lines."""
        slots = _SLOTS.get(workload.name, _SLOTS_USUAL)
        at_once = min(2 * slots, len(workload.lines))
        bodies = [
            json.dumps(line.body(workload.name) | {"cache_prompt": True}).encode("utf-8") for line in workload.lines
        ]
        started = time.perf_counter()
        with self._server(workload, slots, at_once, folder / "log") as (process, port):
            load_s = time.perf_counter() - started
            hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
            for _ in range(2):
                _send(port, [json.dumps(hello).encode("utf-8")], at_once=1)
            cpu_before_s = machine.tree_cpu_s(process.pid)
            span = machine.Span()
            answers = _send(port, bodies, at_once)
            wall_s, others_share = span.end(machine.tree_cpu_s(process.pid) - cpu_before_s)
            return Timing(wall_s, load_s, others_share, machine.tree_peak_bytes(process.pid), answers)

    def close(self) -> None:
        """Nothing is left running."""

    @contextmanager
    def _server(
        self, workload: Workload, slots: int, at_once: int, log: Path
    ) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        port = _free_port()
        command = [
            str(self._program),
            *("--model", str(self._model)),
            *("--host", _HOST, "--port", str(port)),
            *("--parallel", str(slots), "--ctx-size", str(slots * _slot_tokens(workload))),
            *("--batch-size", "2048", "--ubatch-size", "512"),
            *("--threads", str(self._threads), "--threads-batch", str(self._threads)),
            *("--threads-http", str(at_once + 2)),
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_healthy(process, port, log)
            yield process, port
        finally:
            process.terminate()
            process.wait()


def _slot_tokens(workload: Workload) -> int:
    """Returns room for the longest line: prose has three characters a token at least, and the template is short."""
    longest = max(
        sum(len(content) for _, content in line.messages) // 3 + line.max_tokens + 64 for line in workload.lines
    )
    return -(-longest // _CONTEXT_STEP) * _CONTEXT_STEP


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ContenderFailure(f"llama-server ended with {process.returncode}; its log is {log}")
        try:
            with closing(http.client.HTTPConnection(_HOST, port, timeout=5)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise ContenderFailure(f"llama-server did not start in {_START_TIMEOUT_S} s; its log is {log}")


def _send(port: int, bodies: Sequence[bytes], at_once: int) -> tuple[Answer, ...]:
    """Sends all bodies, so many at once, and returns the answers in their order."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(bodies)):
        waiting.put(number)
    answers: dict[int, Answer] = {}
    failures: list[str] = []

    def drain() -> None:
        with closing(http.client.HTTPConnection(_HOST, port, timeout=_ANSWER_TIMEOUT_S)) as connection:
            while not failures:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    answers[number] = _ask(connection, bodies[number])
                except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                    failures.append(f"line {number}: {error!r}")

    threads = [threading.Thread(target=drain) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ContenderFailure(f"llama-server refused {failures[0]}")
    return tuple(answers[number] for number in range(len(bodies)))


def _ask(connection: http.client.HTTPConnection, body: bytes) -> Answer:
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise OSError(f"status {response.status}: {content[:200]!r}")
    return answer_of(json.loads(content))
