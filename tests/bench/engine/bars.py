"""When figures may be compared at all, and what they have to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .rows import Row, fastest_peer

OTHERS_SHARE_MAX = 0.05
REFERENCE_PEAK_SHARE_MIN = 0.28
AGREEMENT_MIN = {"bf16": 0.90, "int8": 0.80}
# Of what an endless prefix cache would save. Blocks that only begin with the prefix cannot be had from a cache.
CACHED_SHARE_MIN = 0.5

RATIO_MIN = {"short": 1.3, "shared": 1.5, "long": 1.3, "dup": 1.3, "ragged": 1.3}
LIMIT_SHARE_MIN = {"int8": 0.45, "bf16": 0.60}
"""Of the least time of the engine's own precision; every workload, in the precision that users get."""
USEFUL_SHARE_MIN = {"int8": 0.40, "bf16": 0.55}
"""The same in either precision, on whole `short` and `long` runs."""
MEMORY_BYTES_MAX = 900e6
DOUBLING_MAX = 2.1
START_S_MAX = 1.0


@dataclass(frozen=True)
class Bar:
    """One figure and its bound."""

    what: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the figure is good enough."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        verdict = "reached" if self.holds else "MISSED"
        side = "at least" if self.at_least else "at most"
        return f"{verdict}: {self.what} {self.value:.3g}, {side} {self.bound:g}"


def refusals(rows: Sequence[Row], reference: str) -> list[str]:
    """Returns why no ratio may be drawn from these rows; nothing where they are sound."""
    reasons = []
    for row in rows:
        where = f"{row.contender} on {row.workload}"
        if row.others_share > OTHERS_SHARE_MAX:
            reasons.append(f"{where}: other processes took {row.others_share:.1%} of the machine")
        if row.wrong_counts:
            reasons.append(f"{where}: {row.wrong_counts} lines have wrong token counts")
        # A peer may round as it likes: what that saves it makes our bars harder, and the table shows what it costs.
        if not row.is_peer and row.agreement < AGREEMENT_MIN[row.precision]:
            reasons.append(f"{where}: only {row.agreement:.1%} of the greedy lines begin as the reference's do")
        cached_share = row.cached_share or 0.0
        if row.contender.startswith("vllm") and row.workload == "shared" and cached_share < CACHED_SHARE_MIN:
            reasons.append(f"{where}: its prefix cache served {cached_share:.1%} of what it could")
    gauge = next((row for row in rows if (row.contender, row.workload) == (reference, "short")), None)
    if gauge is None:
        reasons.append(f"{reference} did not run short, so nothing tells whether the peers are at their best")
    elif gauge.peak_share < REFERENCE_PEAK_SHARE_MIN:
        reasons.append(f"{reference} reached {gauge.peak_share:.1%} of the peak on short: it is not at its best")
    return reasons


def ratios(rows: Sequence[Row], headline: str) -> dict[str, tuple[float, str]]:
    """Returns by workload how many times longer the fastest peer took than `headline`, and that peer's name."""
    found = {}
    for row in rows:
        rivals = [other for other in rows if other.workload == row.workload]
        if row.contender == headline and (rival := fastest_peer(rivals)):
            found[row.workload] = (rival.wall_s / row.wall_s, rival.contender)
    return found


def bars(rows: Sequence[Row], headline: str) -> list[Bar]:
    """Returns every bar that these rows can be held against; `headline` is what users get."""
    found = []
    for workload, (ratio, rival) in ratios(rows, headline).items():
        found.append(Bar(f"{workload}: times as fast as {rival},", ratio, RATIO_MIN[workload]))
    for row in rows:
        if row.is_peer:
            continue
        what = f"{row.workload}: {row.contender},"
        if row.contender == headline:
            bound = LIMIT_SHARE_MIN[row.precision]
            found.append(Bar(f"{what} share of its {row.precision} limit", row.peak_share, bound))
        elif row.workload in ("short", "long"):
            bound = USEFUL_SHARE_MIN[row.precision]
            found.append(Bar(f"{what} useful share of the {row.precision} peak", row.peak_share, bound))
        found.append(Bar(f"{what} peak memory in MB", row.peak_bytes / 1e6, MEMORY_BYTES_MAX / 1e6, at_least=False))
    return found


def doubling_bars(wall_s_by_lines: Sequence[tuple[int, float]]) -> list[Bar]:
    """Returns a bar for each pair of neighbours, the second of which has twice the lines."""
    return [
        Bar(f"{many} lines against {few}: times as long,", long_s / short_s, DOUBLING_MAX, at_least=False)
        for (few, short_s), (many, long_s) in pairwise(wall_s_by_lines)
    ]
