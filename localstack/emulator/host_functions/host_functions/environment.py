"""The variables of a function's process: what AWS would give it, and nothing of this machine."""

from __future__ import annotations

from collections.abc import Mapping

# Where programs are looked up; a bootstrap that is a script needs its interpreter.
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"

# What LocalStack sets for the init program of its own containers.
_CONTAINER_ONLY = ("LOCALSTACK_RUNTIME_ENDPOINT", "LOCALSTACK_RUNTIME_ID", "LAMBDA_RUNTIME_DIR")


def function_environment(
    configured: Mapping[str, object], *, runtime_api: str, code: str, scratch: str
) -> dict[str, str]:
    """Returns the environment of a function.

    `configured` is what LocalStack and the function's own configuration set (AWS_ENDPOINT_URL among it);
    `runtime_api` is host:port; `code` and `scratch` are folders. No variable of the host passes through.
    """
    environment = {name: str(value) for name, value in configured.items() if name not in _CONTAINER_ONLY}
    environment.setdefault("PATH", _SYSTEM_PATH)
    environment.update(
        AWS_LAMBDA_RUNTIME_API=runtime_api, LAMBDA_TASK_ROOT=code, HOME=scratch, TMPDIR=scratch
    )
    return environment
