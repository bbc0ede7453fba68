"""LocalStack 4.14.0, the last release that needs no account, as a process of this machine."""

from __future__ import annotations

import http.client
import urllib.request
from pathlib import Path

from . import pythons
from .paths import HOST_FUNCTIONS, State
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


def _environment(port: int, state: State) -> dict[str, str]:
    address = f"{HOST}:{port}"
    return clean_environment(
        state.folder("emulator/home"),
        GATEWAY_LISTEN=address,
        # The default server ignores the host above and listens on all addresses.
        GATEWAY_SERVER="hypercorn",
        LOCALSTACK_HOST=address,
        # Else it may take this machine for its container, and write to system folders.
        OVERRIDE_IN_DOCKER="0",
        DNS_ADDRESS="0",
        DISABLE_EVENTS="1",
        SKIP_SSL_CERT_DOWNLOAD="1",
        # Plain http://host:port/account/queue; other styles break the AWS provider or do not resolve.
        SQS_ENDPOINT_STRATEGY="off",
        # Else an expired presigned URL is served.
        S3_SKIP_SIGNATURE_VALIDATION="0",
        EAGER_SERVICE_LOADING="0",
        FILESYSTEM_ROOT=str(state.folder("emulator/filesystem")),
        # Code of functions is unpacked here.
        TMPDIR=str(state.folder("emulator/tmp")),
        LAMBDA_RUNTIME_EXECUTOR="host",
        PROVIDER_OVERRIDE_DYNAMODB="moto",
        # Else a message on a quiet queue waits up to ten seconds for its function.
        LAMBDA_EVENT_SOURCE_MAPPING_POLL_INTERVAL_SEC="0.1",
        LAMBDA_EVENT_SOURCE_MAPPING_MAX_BACKOFF_ON_EMPTY_POLL_SEC="0.5",
        PYTHONUNBUFFERED="1",
    )
