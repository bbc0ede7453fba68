"""Where things are: the repository's folders, the cache shared by runs, and the state of one run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

EMULATOR = Path(__file__).resolve().parent.parent
LOCALSTACK = EMULATOR.parent
REPOSITORY = LOCALSTACK.parent
INFRASTRUCTURE = REPOSITORY / "infra"
TERRAFORM_MODULE = LOCALSTACK / "terraform"
COMPOSE_FILE = LOCALSTACK / "compose.yaml"
LOCALSTACK_SETTINGS = EMULATOR / "localstack.env"
HOST_FUNCTIONS = EMULATOR / "host_functions"
CACHE = REPOSITORY / ".cache" / "emulators"

# Folders of a state folder that a new run starts without.
_OF_ONE_RUN = ("logs", "emulator", "terraform", "worker")


@dataclass(frozen=True)
class State:
    """The folder of one stack."""

    root: Path

    @property
    def summary(self) -> Path:
        """What is up: addresses, key, process ids."""
        return self.root / "summary.json"

    @property
    def lock(self) -> Path:
        """Held while a stack is up."""
        return self.root / "lock"

    def folder(self, name: str) -> Path:
        """Returns a folder in the state, made when missing."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> Path:
        """Returns the log file of a process."""
        return self.folder("logs") / f"{name}.log"

    def clear(self) -> None:
        """Removes what an earlier run left; emulators keep nothing over a restart."""
        for name in _OF_ONE_RUN:
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.summary.unlink(missing_ok=True)
