"""The comparison: every engine on every workload, in turns, so that a slow hour slows them all."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import bars, machine, roster
from .contenders import Contender, Timing
from .judge import Expected, Result, as_record, judge
from .places import Places
from .rows import Row, rows
from .table import table
from .work import ModelShape, Peak
from .workloads import Workload, generate

DONE, BAR_MISSED, NOT_COMPARABLE = 0, 1, 2


@dataclass(frozen=True)
class Plan:
    """What is to be timed."""

    workloads: Sequence[str]
    repetitions: int
    seed: int
    """Of the first repetition; each has its own."""
    lines: int | None
    """In place of each workload's own number."""
    tries: int
    """Runs in all, where other processes disturb one."""
    quiet_timeout_s: float


def compare(
    plan: Plan, contenders: Sequence[Contender], headline: str, places: Places, peak: Peak, output: Path | None
) -> int:
    """Runs the plan, prints the table, the bars and the ratios, and returns the exit code."""
    shape = ModelShape.load(places.bf16_checkpoint)
    results: list[Result] = []
    try:
        for repetition in range(plan.repetitions):
            for name in plan.workloads:
                workload = generate(name, plan.seed + repetition, plan.lines)
                folder = places.runs / f"{name}-{workload.seed}"
                # Another goes first each time.
                turn = repetition % len(contenders)
                timings = _run_all(plan, [*contenders[turn:], *contenders[:turn]], workload, folder)
                reference = timings.get(roster.REFERENCE) or timings[headline]
                expected = Expected.of(workload, reference.answers, places)
                results += [
                    judge(contender, workload, timings[contender.name], expected, shape, peak)
                    for contender in contenders
                ]
                if output:
                    _write(output, peak, results)
    finally:
        for contender in contenders:
            contender.close()
    return _report(rows(results), headline, peak)


def _run_all(plan: Plan, order: Sequence[Contender], workload: Workload, folder: Path) -> dict[str, Timing]:
    timings = {}
    for contender in order:
        for attempt in range(plan.tries):
            machine.wait_until_quiet(plan.quiet_timeout_s)
            run_folder = folder / f"{contender.name.replace(' ', '-').replace(',', '')}-{attempt}"
            run_folder.mkdir(parents=True)
            timing = contender.run(workload, run_folder)
            _say(
                f"{workload.name} {workload.seed}: {contender.name} {timing.wall_s:.1f} s, "
                f"other processes {timing.others_share:.1%}"
            )
            timings[contender.name] = timing
            if timing.others_share <= bars.OTHERS_SHARE_MAX:
                break
    return timings


def _report(made: Sequence[Row], headline: str, peak: Peak) -> int:
    reasons = bars.refusals(made, roster.REFERENCE)
    print(
        f"{time.strftime('%Y-%m-%d')}, {machine.processor()}, {len(machine.cores())} cores; register peak "
        f"{peak.bf16_gflops:.0f} GFLOP/s in bf16, {peak.int8_gops:.0f} GOP/s in int8 ({peak.instructions})\n"
    )
    print(table(made, None if reasons else headline))
    if reasons:
        print("\nNo ratios, since these figures cannot be compared:")
        for reason in reasons:
            print(f"- {reason}")
        return NOT_COMPARABLE
    held = bars.bars(made, headline)
    print()
    for bar in held:
        print(f"- {bar}")
    drawn = bars.ratios(made, headline)
    print("\nratios: " + ", ".join(f"{name} {ratio:.2f}x ({rival})" for name, (ratio, rival) in drawn.items()))
    return DONE if all(bar.holds for bar in held) else BAR_MISSED


def measure_peak(program: Path, quiet_timeout_s: float) -> Peak:
    """Times the register-only loops on every core."""
    machine.wait_until_quiet(quiet_timeout_s)
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True)
    return Peak(**json.loads(done.stdout))


def _write(path: Path, peak: Peak, results: Sequence[Result]) -> None:
    record = {"processor": machine.processor(), "peak": vars(peak), "runs": [as_record(result) for result in results]}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
