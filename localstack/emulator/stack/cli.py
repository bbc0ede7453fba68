"""`stack up`, `stack down` and `stack install`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import docker, localstack, ministack
from .failure import StackFailure
from .paths import CACHE, REPOSITORY, State
from .ports import HOST
from .processes import log_tail
from .running import EMULATORS, Options, Stack

_WATCH_S = 0.5
_DOWN_TIMEOUT_S = 90


class _Ended(BaseException):
    """A signal asks for the end."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    # A proxy that the user has for the internet cannot reach this machine.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), HOST)))
    try:
        if options.command == "install":
            print({"localstack": localstack, "ministack": ministack}[options.emulator].install())
            return 0
        if options.command == "down":
            return _down(State(options.state.resolve()))
        if options.detach:
            return _up_detached(options)
        return _up(options)
    except StackFailure as failure:
        print(f"stack: {failure}", file=sys.stderr)
        return failure.exit_code
    except _Ended:
        return 0


def _up(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    state = State(options.state.resolve())
    with _locked(state):
        state.clear()
        stack = Stack(_options(options))
        try:
            _show(stack.start(), as_json=options.json)
            while True:
                stack.check()
                time.sleep(_WATCH_S)
        finally:
            # A second signal must not leave half of it running.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            stack.stop()


def _up_detached(options: argparse.Namespace) -> int:
    """Starts the same command in a session of its own, and waits until it is up."""
    state = State(options.state.resolve())
    state.root.mkdir(parents=True, exist_ok=True)
    state.summary.unlink(missing_ok=True)
    log = state.root / "stack.log"
    # Private: the summary in it has the key.
    with open(log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        process = subprocess.Popen(
            [sys.executable, sys.argv[0], *(argument for argument in sys.argv[1:] if argument != "--detach")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while not state.summary.exists():
        if process.poll() is not None:
            print(log_tail(log), file=sys.stderr)
            return process.returncode
        time.sleep(_WATCH_S)
    _show(json.loads(state.summary.read_text()), as_json=options.json)
    return 0


def _down(state: State) -> int:
    try:
        summary = json.loads(state.summary.read_text())
    except FileNotFoundError:
        print(f"no stack is up in {state.root}", file=sys.stderr)
        return 0
    if not _is_locked(state):
        print(f"the stack of {state.root} is gone already", file=sys.stderr)
        # Processes end with the stack; containers outlive one that was killed.
        if summary.get("emulator") == "docker":
            docker.Containers(state).stop()
        state.summary.unlink()
        return 0
    pid = summary["pid"]
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    while _is_locked(state):
        if time.monotonic() > deadline:
            raise StackFailure(f"the stack (process {pid}) did not end in {_DOWN_TIMEOUT_S} s")
        time.sleep(_WATCH_S)
    return 0


def _show(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary), flush=True)
        return
    print(
        f"\nNightshift is up on {summary['emulator']}.\n\n"
        f"  export OPENAI_BASE_URL={summary['base_url']}\n"
        f"  export OPENAI_API_KEY={summary['api_key']}\n\n"
        f"AWS itself: {summary['endpoint']}. Logs: {Path(summary['logs']['terraform']).parent}.",
        flush=True,
    )


def _options(options: argparse.Namespace) -> Options:
    return Options(
        emulator=options.emulator,
        state=options.state,
        zips=options.zips,
        port=options.port,
        settings=options.settings,
        nightshift=options.nightshift,
        worker=not options.no_worker,
        check_drift=options.check_drift,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stack", description="Nightshift on an emulated AWS on this machine.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start everything; Ctrl-C ends it", allow_abbrev=False)
    up.add_argument(
        "--emulator",
        choices=EMULATORS,
        default="auto",
        help="auto: docker if an engine answers, else localstack",
    )
    up.add_argument("--port", type=int, help="port of the base URL; default: a free one")
    up.add_argument(
        "--zips", type=Path, default=_target() / "lambda/host", help="folder with the functions' zips"
    )
    up.add_argument(
        "--settings",
        type=_json_object,
        default={},
        help="JSON for the module's variable settings: limits, and speeds for tests",
    )
    up.add_argument("--nightshift", type=Path, help="the nightshift command; default: what was built last")
    up.add_argument("--no-worker", action="store_true", help="start no worker")
    up.add_argument(
        "--check-drift", action="store_true", help="fail when a plan after the apply shows changes"
    )
    up.add_argument("--json", action="store_true", help="print one line of JSON when up")
    up.add_argument("--detach", action="store_true", help="return when up; `stack down` ends it")
    down = commands.add_parser("down", help="end a detached stack")
    for command in (up, down):
        command.add_argument(
            "--state",
            type=Path,
            default=CACHE.parent / "stack",
            help="folder for logs and state of this stack; default: .cache/stack",
        )
    install = commands.add_parser("install", help="only make an emulator's Python environment")
    install.add_argument("--emulator", choices=("localstack", "ministack"), required=True)
    return parser


def _target() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {text}")
    return value


@contextmanager
def _locked(state: State) -> Iterator[None]:
    state.root.mkdir(parents=True, exist_ok=True)
    # Closed on exec: the processes of the stack must not hold it.
    with state.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackFailure(f"a stack is up in {state.root} already") from error
        yield


def _is_locked(state: State) -> bool:
    with state.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _end(number: int, frame: object) -> None:
    raise _Ended
