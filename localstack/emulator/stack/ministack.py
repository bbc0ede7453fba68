"""MiniStack, with what ../ministack_extras adds, as a process of this machine."""

from __future__ import annotations

from pathlib import Path

from . import pythons
from .localstack import is_healthy
from .paths import EMULATOR, State
from .ports import HOST, free_port
from .processes import Child, Children, clean_environment, wait_until

# It is released often, and the additions patch its insides: pinned.
VERSION = "1.5.33"
_REQUIREMENTS = pythons.Requirements(name="ministack", packages=(f"ministack=={VERSION}",))


def install() -> Path:
    """Makes MiniStack's environment if it is missing; returns its Python."""
    return pythons.environment(pythons.this_python(), _REQUIREMENTS)


def start(children: Children, state: State) -> tuple[str, Child]:
    """Starts MiniStack; returns its endpoint and process once it is healthy."""
    python = install()
    port = free_port()
    endpoint = f"http://{HOST}:{port}"
    child = children.start(
        "ministack",
        [python, EMULATOR / "ministack_extras" / "launch.py"],
        # Functions get this whole environment, so that it holds nothing of the host that is not needed.
        env=clean_environment(
            state.folder("emulator/home"),
            # The default is all addresses.
            BIND_HOST=HOST,
            GATEWAY_PORT=str(port),
            MINISTACK_HOST=HOST,
            # What functions call; without it they call the real AWS.
            AWS_ENDPOINT_URL=endpoint,
            LAMBDA_EXECUTOR="local",
            TMPDIR=str(state.folder("emulator/tmp")),
            PYTHONUNBUFFERED="1",
        ),
        log=state.log("ministack"),
        cwd=state.folder("emulator"),
    )
    wait_until(
        lambda: is_healthy(f"{endpoint}/_ministack/health"), what="MiniStack", timeout_s=60, check=child.check
    )
    return endpoint, child
