"""LocalStack's own image, where there is a Docker engine."""

from __future__ import annotations

import os
import shutil
import subprocess

from .failure import StackFailure, Unavailable
from .localstack import is_healthy
from .paths import COMPOSE_FILE, State
from .ports import HOST, free_port
from .processes import wait_until

_PROJECT = "nightshift"
_PULL_TIMEOUT_S = 600


def has_engine() -> bool:
    """Tells whether a Docker engine with Compose answers."""
    if shutil.which("docker") is None:
        return False
    return all(_answers(command) for command in (["docker", "info"], ["docker", "compose", "version"]))


class Containers:
    """The containers of one stack."""

    def __init__(self, state: State) -> None:
        self._port = free_port()
        self._log = state.log("localstack")
        self._project = f"{_PROJECT}-{self._port}"

    def start(self) -> str:
        """Starts LocalStack's container; returns its endpoint once it is healthy."""
        if not has_engine():
            raise Unavailable("no Docker engine answers: use --emulator localstack or ministack")
        self._compose("up", "--detach", "--wait")
        endpoint = f"http://{HOST}:{self._port}"
        wait_until(
            lambda: is_healthy(f"{endpoint}/_localstack/health"),
            what="LocalStack's container",
            timeout_s=_PULL_TIMEOUT_S,
            check=lambda: None,
        )
        return endpoint

    def stop(self) -> None:
        """Removes the containers, and those of functions that LocalStack started."""
        self._compose("down", "--volumes", "--remove-orphans")

    def _compose(self, *command: str) -> None:
        with self._log.open("ab") as log:
            result = subprocess.run(
                ["docker", "compose", "--project-name", self._project, "--file", str(COMPOSE_FILE), *command],
                env=os.environ | {"LOCALSTACK_PORT": str(self._port)},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if result.returncode != 0:
            raise StackFailure(
                f"`docker compose {command[0]}` ended with {result.returncode}: see {self._log}"
            )


def _answers(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
