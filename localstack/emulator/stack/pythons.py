"""Finds a Python new enough for an emulator, and makes its environment once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .failure import StackFailure, Unavailable
from .paths import CACHE

Version = tuple[int, int]

# LocalStack 4.14.0 uses syntax of 3.12, whatever its metadata says. Newer than 3.14 nobody has tried.
LOCALSTACK_PYTHONS: Sequence[Version] = ((3, 13), (3, 12), (3, 14))
MINISTACK_PYTHON_MIN: Version = (3, 10)


@dataclass(frozen=True)
class Requirements:
    """What an environment holds."""

    name: str
    packages: Sequence[str]
    constraints: Path | None = None
    local: Path | None = None
    """A package in this repository, installed after the others."""

    def packages_digest(self) -> str:
        """Changes with anything that comes from PyPI."""
        text = "\n".join(self.packages)
        return _digest(text.encode(), self.constraints.read_bytes() if self.constraints else b"")

    def local_digest(self) -> str:
        """Changes with the package in this repository."""
        sources = sorted(self.local.rglob("*") if self.local else ())
        return _digest(*(path.read_bytes() for path in sources if path.suffix in {".toml", ".py"}))


def python_for_localstack() -> Path:
    """Returns a Python that can run LocalStack; raises `Unavailable` where there is none."""
    for version in LOCALSTACK_PYTHONS:
        for candidate in _candidates(version):
            if _version(candidate) == version:
                return candidate
    raise Unavailable(
        "LocalStack 4.14.0 needs Python 3.12, 3.13 or 3.14, and there is none on PATH or under pyenv.\n"
        "Install one (e.g. `pyenv install 3.13`), or use --emulator ministack."
    )


def environment(python: Path, requirements: Requirements) -> Path:
    """Returns the Python of an environment with the requirements, made on first use."""
    CACHE.mkdir(parents=True, exist_ok=True)
    home = CACHE / requirements.name
    # Two stacks may start at once.
    with (CACHE / f"{requirements.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages, local = home / "packages", home / "ready"
        installed = home / "bin" / "python"
        # The link is broken where the Python that it was made with is gone.
        if not installed.exists() or not _holds(packages, requirements.packages_digest()):
            _make(home, python, requirements)
            packages.write_text(requirements.packages_digest())
        if not _holds(local, requirements.local_digest()):
            _install_local(home, requirements)
            local.write_text(requirements.local_digest())
        # For those who compare times, as make does.
        local.touch()
    return installed


def this_python() -> Path:
    """Returns the Python that runs this command."""
    if sys.version_info[:2] < MINISTACK_PYTHON_MIN:
        raise Unavailable("MiniStack needs Python 3.10 or newer")
    return Path(sys.executable)


def _candidates(version: Version) -> Iterator[Path]:
    name = f"python{version[0]}.{version[1]}"
    if found := shutil.which(name):
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{version[0]}.{version[1]}*/bin/{name}"), reverse=True)


def _version(python: Path) -> Version | None:
    # A shim of pyenv is on PATH for versions that are not active; it fails when run.
    try:
        answer = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        major, minor = answer.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return int(major), int(minor)


def _digest(*parts: bytes) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()[:16]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


def _make(home: Path, python: Path, requirements: Requirements) -> None:
    print(f"installing {requirements.name} with {python} (once)", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run([python, "-m", "venv", home])
    command = [*_pip_install(home), *requirements.packages]
    if requirements.constraints is not None:
        command += ["--constraint", requirements.constraints]
    _run(command)


def _install_local(home: Path, requirements: Requirements) -> None:
    if requirements.local is None:
        return
    # A copy: building writes into the source folder.
    source = home / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(requirements.local, source, ignore=shutil.ignore_patterns("__pycache__"))
    _run([*_pip_install(home), "--no-deps", "--force-reinstall", source])


def _pip_install(home: Path) -> list[str | Path]:
    python = home / "bin" / "python"
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _run(command: Sequence[str | Path]) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        shown = " ".join(str(part) for part in command)
        raise StackFailure(
            f"`{shown}` ended with {result.returncode}:\n{(result.stdout + result.stderr)[-4000:]}"
        )
