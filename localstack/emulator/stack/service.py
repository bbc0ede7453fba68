"""What runs beside the infrastructure: an API key and a CPU worker, by the `nightshift` command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .failure import StackFailure
from .paths import REPOSITORY, State
from .processes import Child, Children, log_tail

# Of this machine's variables, those that the command reads or a program needs.
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "NIGHTSHIFT_MODELS",
)
_KEY_TIMEOUT_S = 60


def client_environment(endpoint: str, region: str, deployment: Mapping[str, str]) -> dict[str, str]:
    """Returns what a client of the emulated AWS is told: addresses, and keys that nobody checks."""
    return dict(deployment) | {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def find_nightshift(given: Path | None) -> Path:
    """Returns the `nightshift` command: the one given, else the newest that was built, else one on PATH."""
    if given is not None:
        if not given.is_file():
            raise StackFailure(f"{given} is no file")
        return given.resolve()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
    built = [path for kind in ("release", "debug") if (path := target / kind / "nightshift").is_file()]
    if built:
        return max(built, key=lambda path: path.stat().st_mtime)
    if found := shutil.which("nightshift"):
        return Path(found)
    raise StackFailure(
        "there is no `nightshift` command: cargo build --locked --package nightshift --features aws"
    )


def make_key(nightshift: Path, environment: Mapping[str, str]) -> str:
    """Makes an API key in the deployment."""
    command = [str(nightshift), "deploy", "key", "--json"]
    try:
        result = subprocess.run(
            command,
            env=_passed_on() | dict(environment),
            capture_output=True,
            text=True,
            timeout=_KEY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StackFailure(f"`{' '.join(command)}` took over {_KEY_TIMEOUT_S} s") from error
    if result.returncode != 0:
        raise StackFailure(f"`{' '.join(command)}` ended with {result.returncode}:\n{result.stderr[-4000:]}")
    answer = json.loads(result.stdout)
    key = answer.get("api_key") or answer.get("key")
    if not isinstance(key, str):
        raise StackFailure(f"`{' '.join(command)}` printed no key")
    return key


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns everything that a worker is told; `environment` is that of a client."""
    return _passed_on() | dict(environment)


def start_worker(children: Children, state: State, nightshift: Path, environment: Mapping[str, str]) -> Child:
    """Starts a worker that serves every model of the deployment on the CPU."""
    child = children.start(
        "worker",
        [nightshift, "worker"],
        env=environment,
        log=state.log("worker"),
        cwd=state.folder("worker"),
        # It may be killed, in a test or by memory; another one can be started.
        is_essential=False,
    )
    try:
        # A worker that cannot start says so at once; one that can stays.
        code = child.process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return child
    raise StackFailure(f"the worker ended with {code}:\n{log_tail(child.log)}")


def _passed_on() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
