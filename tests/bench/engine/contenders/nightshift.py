"""Nightshift, by `nightshift run`: what a user types, from the file to the file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from .. import machine
from ..workloads import Workload
from . import Answer, ContenderFailure, Timing


class Nightshift:
    """`nightshift run` in one precision."""

    is_peer = False

    def __init__(self, program: Path, model: Path, precision: str) -> None:
        self.name = f"nightshift {precision}"
        self.precision = precision
        self._command = [str(program), "run", "--json", "--precision", precision, "--model", str(model)]

    @staticmethod
    def precisions(program: Path) -> set[str]:
        """Returns the precisions that the program takes, of those that have a peak to compare with."""
        helped = subprocess.run([program, "run", "--help"], capture_output=True, text=True, check=True)
        words = set(helped.stdout.replace(",", " ").replace("[", " ").replace("]", " ").replace(":", " ").split())
        return words & {"bf16", "int8"}

    def run(self, workload: Workload, folder: Path) -> Timing:
        """Runs the file once. The folder is new, so there is no resume file to go on from."""
        source, target, log = folder / "in.jsonl", folder / "out.jsonl", folder / "log"
        workload.write(source, model=workload.name)
        with log.open("wb") as errors, (folder / "report.json").open("w+b") as report:
            span = machine.Span()
            process = subprocess.Popen([*self._command, str(source), "-o", str(target)], stdout=report, stderr=errors)
            # It starts no other process: what the system tells of this one is all.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            total_s, others_share = span.end(usage.ru_utime + usage.ru_stime)
            report.seek(0)
            reported = report.read()
        if process.returncode != 0:
            raise ContenderFailure(f"nightshift ended with {process.returncode}; its log is {log}")
        load_s = float(json.loads(reported)["load_s"])
        return Timing(
            wall_s=total_s - load_s,
            load_s=load_s,
            others_share=others_share,
            peak_bytes=usage.ru_maxrss * 1024,
            answers=_read_answers(target, workload),
        )

    def close(self) -> None:
        """Nothing is left running."""


def _read_answers(path: Path, workload: Workload) -> tuple[Answer, ...]:
    by_id: dict[str, Answer] = {}
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        body = record["response"]["body"]
        by_id[record["custom_id"]] = answer_of(body)
    missing = [line.custom_id for line in workload.lines if line.custom_id not in by_id]
    if missing:
        raise ContenderFailure(f"{len(missing)} lines without an answer in {path}, the first {missing[0]}")
    return tuple(by_id[line.custom_id] for line in workload.lines)


def answer_of(body: dict[str, Any]) -> Answer:
    """Takes an answer out of a chat completion."""
    usage = body["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text=body["choices"][0]["message"]["content"] or "",
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=details.get("cached_tokens"),
    )
