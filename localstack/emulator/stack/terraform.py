"""Applies the infrastructure to an emulator."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .failure import StackFailure
from .paths import CACHE, INFRASTRUCTURE, TERRAFORM_MODULE, State

_PARALLELISM = 16


@dataclass(frozen=True)
class Inputs:
    """The variables of ../../terraform."""

    endpoint: str
    artifacts_dir: Path
    settings: dict[str, Any]

    def to_json(self) -> str:
        return json.dumps(
            {
                "endpoint": self.endpoint,
                "artifacts_dir": str(self.artifacts_dir),
                "architecture": host_architecture(),
                "settings": self.settings,
            }
        )


@dataclass(frozen=True)
class Outputs:
    """What the applied infrastructure is called."""

    api_id: str
    region: str
    environment: dict[str, str]


class Terraform:
    """Terraform with one run's state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._folder = state.folder("terraform")
        self._variables = self._folder / "terraform.tfvars.json"
        self._module = _own_module(self._folder)
        found = shutil.which("terraform")
        if found is None:
            raise StackFailure(
                "terraform is not on PATH: install it (https://developer.hashicorp.com/terraform/install)"
            )
        self._program = found

    def apply(self, inputs: Inputs) -> Outputs:
        """Creates everything and returns what it is called."""
        self._variables.write_text(inputs.to_json())
        self._init()
        self._run("apply", "-auto-approve", f"-parallelism={_PARALLELISM}", f"-var-file={self._variables}")
        outputs = json.loads(self._run("output", "-json"))
        return Outputs(
            api_id=outputs["api_id"]["value"],
            region=outputs["region"]["value"],
            environment=outputs["environment"]["value"],
        )

    def _init(self) -> None:
        plugins = os.environ.get("TF_PLUGIN_DIR")
        CACHE.mkdir(parents=True, exist_ok=True)
        # Stacks share the provider cache, which takes one init at a time.
        with (CACHE / "terraform.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._run(
                "init",
                f"-backend-config=path={self._folder / 'terraform.tfstate'}",
                *([f"-plugin-dir={plugins}"] if plugins else []),
            )

    def drift(self) -> str | None:
        """Plans once more; returns what would change, None when nothing would."""
        result = self._result("plan", "-detailed-exitcode", f"-var-file={self._variables}")
        if result.returncode == 0:
            return None
        if result.returncode == 2:
            return result.stdout
        raise _failure("plan", result)

    def _run(self, command: str, *options: str) -> str:
        result = self._result(command, *options)
        if result.returncode != 0:
            raise _failure(command, result)
        return result.stdout

    def _result(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        # No `-input` for output: it has none.
        quiet = [] if command == "output" else ["-input=false"]
        result = subprocess.run(
            [self._program, f"-chdir={self._module}", command, "-no-color", *quiet, *options],
            env=_environment(self._folder),
            capture_output=True,
            text=True,
            check=False,
        )
        with self._state.log("terraform").open("a") as log:
            log.write(f"$ terraform {command}\n{result.stdout}{result.stderr}\n")
        return result


def host_architecture() -> str:
    """Returns this machine's architecture in Lambda's words."""
    return "arm64" if platform.machine().lower() in ("arm64", "aarch64") else "x86_64"


def _own_module(folder: Path) -> Path:
    """Returns a copy of the root module: its lock file is this run's own, and no run writes into the repository."""
    module = folder / "localstack" / "terraform"
    shutil.copytree(TERRAFORM_MODULE, module, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    # Where the copy looks for ../../infra.
    (folder / "infra").symlink_to(INFRASTRUCTURE)
    return module


def _environment(folder: Path) -> dict[str, str]:
    # AWS_* of whoever runs this must not lead the provider to a real account.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    cache = CACHE / "terraform-plugins"
    cache.mkdir(parents=True, exist_ok=True)
    environment.setdefault("TF_PLUGIN_CACHE_DIR", str(cache))
    environment.update(
        TF_DATA_DIR=str(folder / "data"),
        TF_IN_AUTOMATION="1",
        CHECKPOINT_DISABLE="1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    return environment


def _failure(command: str, result: subprocess.CompletedProcess[Any]) -> StackFailure:
    return StackFailure(f"`terraform {command}` ended with {result.returncode}:\n{result.stderr[-6000:]}")
