"""The runs of one engine on one workload, as one row: medians, and the worst of what must not be bad once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .judge import Result


@dataclass(frozen=True)
class Row:
    """One engine on one workload."""

    contender: str
    is_peer: bool
    precision: str
    workload: str
    runs: int
    wall_s: float
    wall_with_load_s: float
    tokens_per_s: float
    """Prompt and new tokens, those from a cache among them."""
    peak_bytes: int
    """The most of all runs."""
    peak_share: float
    """Useful FLOP/s as a share of the peak of the engine's precision."""
    others_share: float
    """The most of all runs."""
    cached_share: float | None
    """The least of all runs: prompt tokens from the cache, of those that could be."""
    wrong_counts: int
    agreement: float
    """The least of all runs."""


def rows(results: Iterable[Result]) -> list[Row]:
    """Groups the runs; rows come in the order in which their first runs did, by workload."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.workload, result.contender), []).append(result)
    workloads = dict.fromkeys(workload for workload, _ in groups)
    made = [_row(group) for group in groups.values()]
    return [row for workload in workloads for row in made if row.workload == workload]


def _row(group: list[Result]) -> Row:
    first = group[0]
    cached = [
        result.cached_tokens / max(1, result.cacheable_tokens) for result in group if result.cached_tokens is not None
    ]
    return Row(
        contender=first.contender,
        is_peer=first.is_peer,
        precision=first.precision,
        workload=first.workload,
        runs=len(group),
        wall_s=median(result.wall_s for result in group),
        wall_with_load_s=median(result.wall_s + result.load_s for result in group),
        tokens_per_s=median((result.prompt_tokens + result.completion_tokens) / result.wall_s for result in group),
        peak_bytes=max(result.peak_bytes for result in group),
        peak_share=median(result.peak_share for result in group),
        others_share=max(result.others_share for result in group),
        cached_share=min(cached) if cached else None,
        wrong_counts=sum(result.wrong_counts for result in group),
        agreement=min(result.agreement for result in group),
    )


def fastest_peer(rows_of_workload: Iterable[Row]) -> Row | None:
    """Returns the peer with the least wall time."""
    return min((row for row in rows_of_workload if row.is_peer), key=lambda row: row.wall_s, default=None)
