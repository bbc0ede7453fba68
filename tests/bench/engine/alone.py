"""Nightshift by itself: how its time grows with the lines, and how long it takes to start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from . import bars, machine
from .contenders.nightshift import Nightshift
from .workloads import Line, Workload, generate


def scaling(
    engine: Nightshift, sizes: Sequence[int], repetitions: int, seed: int, quiet_timeout_s: float, runs: Path
) -> bool:
    """Times `short` at each size, prints the medians, and returns whether every doubling holds its bar."""
    walls: dict[int, list[float]] = {size: [] for size in sizes}
    for repetition in range(repetitions):
        for size in sizes:
            folder = runs / f"scaling-{repetition}-{size}"
            folder.mkdir(parents=True)
            machine.wait_until_quiet(quiet_timeout_s)
            timing = engine.run(generate("short", seed + repetition, size), folder)
            walls[size].append(timing.wall_s)
            print(f"{size} lines: {timing.wall_s:.2f} s, other processes {timing.others_share:.1%}", flush=True)
    return _print_bars(bars.doubling_bars([(size, median(walls[size])) for size in sizes]))


def start(engine: Nightshift, repetitions: int, quiet_timeout_s: float, runs: Path) -> bool:
    """Times a file of one line and one new token, after a first run that fills the caches.

    That is the time to the first step and a little more: the step itself, the output file, and the exit.
    """
    one = Workload("start", 0, (Line("start", (("user", "Hello"),), max_tokens=1),))
    totals = []
    for repetition in range(repetitions + 1):
        folder = runs / f"start-{repetition}"
        folder.mkdir(parents=True)
        machine.wait_until_quiet(quiet_timeout_s)
        started = time.perf_counter()
        engine.run(one, folder)
        totals.append(time.perf_counter() - started)
    print("seconds, the first with cold caches:", ", ".join(f"{total:.3f}" for total in totals))
    return _print_bars([bars.Bar("start to the end of one step, s", median(totals[1:]), bars.START_S_MAX, False)])


def _print_bars(held: Sequence[bars.Bar]) -> bool:
    for bar in held:
        print(f"- {bar}")
    return all(bar.holds for bar in held)
