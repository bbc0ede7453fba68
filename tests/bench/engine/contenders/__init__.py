"""Engines that answer a batch file, each run in its best settings behind one interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..workloads import Workload


class ContenderFailure(Exception):
    """An engine did not start, or did not answer; the message says where its log is."""


@dataclass(frozen=True)
class Answer:
    """What came back for one line."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """Prompt tokens that were not computed again; none where the engine does not tell."""


@dataclass(frozen=True)
class Timing:
    """One run of one file."""

    wall_s: float
    """From the first line to the last answer, with the model loaded."""
    load_s: float
    """From the start of the process to where `wall_s` begins; a process that serves several runs pays it once."""
    others_share: float
    """Of the machine, taken by other processes meanwhile; 0 to 1."""
    peak_bytes: int
    answers: tuple[Answer, ...]
    """In the order of the lines."""


class Contender(Protocol):
    """An engine in certain settings."""

    name: str
    is_peer: bool
    """False for Nightshift itself."""
    precision: str
    """`bf16` or `int8`: what it multiplies in, and the peak that it is held against."""

    def run(self, workload: Workload, folder: Path) -> Timing:
        """Runs the file from a state in which nothing of it is cached; `folder` is new, for files and logs."""

    def close(self) -> None:
        """Ends every process."""
