"""A stack from the first process to the last."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import docker, gateway, localstack, ministack, ports, service
from .failure import StackFailure
from .paths import State
from .processes import Children
from .terraform import Inputs, Terraform

EMULATORS = ("auto", "localstack", "ministack", "docker")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    emulator: str
    state: Path
    zips: Path
    port: int | None
    settings: dict[str, Any]
    nightshift: Path | None
    worker: bool
    check_drift: bool


class Stack:
    """Everything that is up; `stop` ends it, however far `start` came."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._state = State(options.state.resolve())
        self._children = Children()
        self._containers: docker.Containers | None = None

    def start(self) -> dict[str, Any]:
        """Starts all in order, and returns what a client needs to know."""
        options, state = self._options, self._state
        nightshift = service.find_nightshift(options.nightshift)
        if not any(options.zips.glob("*.zip")):
            raise StackFailure(
                f"{options.zips} has no zips of functions: functions/package --target host --profile dev"
            )
        terraform = Terraform(state)
        if options.port is not None:
            ports.check_free(options.port)
        emulator = self._chosen_emulator()
        endpoint = _timed(f"starting {emulator}", lambda: self._start_emulator(emulator))
        outputs = _timed(
            "applying infra/ with Terraform",
            lambda: terraform.apply(
                Inputs(endpoint, options.zips.resolve(), options.settings)
            ),
        )
        if options.check_drift and (drift := terraform.drift()) is not None:
            raise StackFailure(f"a plan after the apply shows changes:\n{drift}")
        # Chosen late: a free port may not be free for the minutes that Terraform takes.
        port = options.port or ports.free_port()
        gateway.start(
            self._children,
            state,
            endpoint=endpoint,
            api_id=outputs.api_id,
            region=outputs.region,
            port=port,
        )
        environment = service.client_environment(endpoint, outputs.region, outputs.environment)
        worker_environment = service.worker_environment(environment)
        key = service.make_key(nightshift, environment)
        if options.worker:
            service.start_worker(self._children, state, nightshift, worker_environment)
        ports.check_loopback_only(self._children.pids().values())
        summary = {
            "base_url": gateway.base_url(port),
            "api_key": key,
            "endpoint": endpoint,
            "api_id": outputs.api_id,
            "emulator": emulator,
            "emulator_log": str(state.log(emulator if emulator != "docker" else "localstack")),
            "deployment": outputs.environment["NIGHTSHIFT_DEPLOYMENT"],
            "environment": environment,
            "worker_environment": worker_environment,
            "worker_log": str(state.log("worker")),
            "worker_pid": self._children.pids().get("worker"),
            "pid": os.getpid(),
            "pids": self._children.pids(),
            "logs": self._children.logs() | {"terraform": str(state.log("terraform"))},
        }
        _write_private(state.summary, json.dumps(summary, indent=2))
        return summary

    def check(self) -> None:
        """Raises when a process has ended."""
        self._children.check()

    def stop(self) -> None:
        """Ends all in reverse order and leaves nothing running."""
        self._state.summary.unlink(missing_ok=True)
        self._children.stop()
        if self._containers is not None:
            self._containers.stop()

    def _chosen_emulator(self) -> str:
        if self._options.emulator != "auto":
            return self._options.emulator
        return "docker" if docker.has_engine() else "localstack"

    def _start_emulator(self, emulator: str) -> str:
        if emulator == "docker":
            self._containers = docker.Containers(self._state)
            endpoint = self._containers.start(self._children)
            self._containers.check_programs(self._options.zips.resolve())
            return endpoint
        start = {"localstack": localstack.start, "ministack": ministack.start}[emulator]
        endpoint, child = start(self._children, self._state)
        ports.check_loopback_only([child.pid])
        return endpoint


def _timed(what: str, act: Any) -> Any:
    print(f"{what} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    result = act()
    print(f"{what}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    return result


def _write_private(path: Path, text: str) -> None:
    # It has the key. Renamed into place, so that nobody reads half of it.
    unfinished = path.with_suffix(".new")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.rename(path)
