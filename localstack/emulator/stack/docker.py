"""LocalStack's own image, where there is a Docker engine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from . import programs
from .failure import StackFailure, Unavailable
from .localstack import is_healthy
from .paths import COMPOSE_FILE, State
from .ports import HOST, free_port
from .processes import Children, log_tail, wait_until
from .terraform import host_architecture

SERVICE = "localstack"
_HEALTHY_TIMEOUT_S = 90
# It keeps nothing, and takes long to stop its services one by one.
_GRACE_S = 5


def has_engine() -> bool:
    """Tells whether a Docker engine answers, and Compose is there."""
    return has_compose() and _answers(["docker", "info"])


def has_compose() -> bool:
    """Tells whether there is Docker Compose, with or without an engine."""
    return shutil.which("docker") is not None and _answers(["docker", "compose", "version"])


class Containers:
    """The containers of one stack; raises `Unavailable` where there is no engine for them."""

    def __init__(self, state: State) -> None:
        if not has_engine():
            raise Unavailable("no Docker engine with Compose answers: use --emulator localstack or ministack")
        self._port = free_port()
        self._state = state
        self._log = state.log("localstack")
        # The state's, so that the next stack in it finds what one that was killed left behind.
        self._project = f"nightshift-{hashlib.sha256(str(state.root).encode()).hexdigest()[:12]}"

    def start(self, children: Children) -> str:
        """Starts LocalStack's container and what follows its log; returns its endpoint once it is healthy."""
        # What a stack that was killed left here, with its volume, which making the container anew would not remove.
        self.stop()
        try:
            self._compose("up", "--detach", "--wait")
        except StackFailure as failure:
            self._run("logs", "--no-color")
            raise StackFailure(f"{failure}, or use --emulator localstack\n{log_tail(self._log)}") from failure
        # Ends with the container, which is how its end is noticed. Compose's own `logs` writes escape sequences.
        child = children.start(
            SERVICE,
            ["docker", "logs", "--follow", self._answer("ps", "--quiet", SERVICE)],
            env=self._environment(),
            log=self._log,
            cwd=self._state.folder("emulator"),
        )
        endpoint = f"http://{HOST}:{self._port}"
        wait_until(
            lambda: is_healthy(f"{endpoint}/_localstack/health"),
            what="LocalStack's container",
            timeout_s=_HEALTHY_TIMEOUT_S,
            check=child.check,
        )
        return endpoint

    def check_programs(self, zips: Path) -> None:
        """Raises when the functions' programs, built on this machine, cannot start in the container."""
        said = self._answer("exec", "-T", SERVICE, "getconf", "GNU_LIBC_VERSION")
        version = re.fullmatch(r"glibc 2\.(\d+)", said)
        if version is None:
            raise StackFailure(f"the container's C library is not glibc 2: {said}")
        programs.check_glibc(zips, int(version[1]), host_architecture())

    def stop(self) -> None:
        """Removes the containers, and those of functions that LocalStack started."""
        self._compose("down", "--volumes", "--remove-orphans", f"--timeout={_GRACE_S}")

    def _compose(self, *command: str) -> None:
        code = self._run(*command)
        if code != 0:
            raise StackFailure(f"`docker compose {command[0]}` ended with {code}: see {self._log}")

    def _answer(self, *command: str) -> str:
        result = subprocess.run(
            self._command(*command),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise StackFailure(f"`docker compose {command[0]}` ended with {result.returncode}:\n{result.stderr}")
        return result.stdout.strip()

    def _run(self, *command: str) -> int:
        with self._log.open("ab") as log:
            return subprocess.run(
                self._command(*command),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

    def _command(self, *command: str) -> list[str]:
        options = ["--ansi", "never", "--project-name", self._project, "--file", str(COMPOSE_FILE)]
        return ["docker", "compose", *options, *command]

    def _environment(self) -> dict[str, str]:
        return os.environ | {"LOCALSTACK_PORT": str(self._port)}


def _answers(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
