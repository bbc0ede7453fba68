"""LocalStack 4.14.0, the last release that needs no account, as a process of this machine."""

from __future__ import annotations

import http.client
import urllib.request
from pathlib import Path

from . import pythons
from .paths import HOST_FUNCTIONS, LOCALSTACK_SETTINGS, State
from .ports import HOST, free_port
from .processes import Child, Children, clean_environment, wait_until

VERSION = "4.14.0"
_REQUIREMENTS = pythons.Requirements(
    name="localstack",
    packages=(f"localstack-core[runtime]=={VERSION}",),
    constraints=HOST_FUNCTIONS / "constraints.txt",
    local=HOST_FUNCTIONS,
)


def install() -> Path:
    """Makes LocalStack's environment if it is missing; returns its Python."""
    return pythons.environment(pythons.python_for_localstack(), _REQUIREMENTS)


def start(children: Children, state: State) -> tuple[str, Child]:
    """Starts LocalStack; returns its endpoint and process once it is healthy."""
    python = install()
    port = free_port()
    folder = state.folder("emulator")
    child = children.start(
        "localstack",
        [python, "-m", "localstack.runtime.main"],
        env=_environment(port, state),
        log=state.log("localstack"),
        cwd=folder,
        # It keeps nothing, and takes long to stop its services one by one.
        grace_s=5,
    )
    endpoint = f"http://{HOST}:{port}"
    wait_until(
        lambda: is_healthy(f"{endpoint}/_localstack/health"),
        what="LocalStack",
        timeout_s=90,
        check=child.check,
    )
    return endpoint, child


def is_healthy(url: str) -> bool:
    """Tells whether a health page answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def settings() -> dict[str, str]:
    """Returns what LocalStack is told wherever it runs."""
    lines = LOCALSTACK_SETTINGS.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _environment(port: int, state: State) -> dict[str, str]:
    address = f"{HOST}:{port}"
    return clean_environment(
        state.folder("emulator/home"),
        **settings(),
        GATEWAY_LISTEN=address,
        # The default server ignores the host above and listens on all addresses.
        GATEWAY_SERVER="hypercorn",
        LOCALSTACK_HOST=address,
        # Else it may take this machine for its container, and write to system folders.
        OVERRIDE_IN_DOCKER="0",
        FILESYSTEM_ROOT=str(state.folder("emulator/filesystem")),
        # Code of functions is unpacked here.
        TMPDIR=str(state.folder("emulator/tmp")),
    )
