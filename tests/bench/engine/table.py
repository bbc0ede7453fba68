"""The rows as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .rows import Row

_HEAD = (
    "workload",
    "engine",
    "wall s",
    "with load s",
    "x of Nightshift",
    "tokens/s",
    "peak MB",
    "useful FLOP/s of peak",
    "same first tokens",
    "other processes",
)


def table(rows: Sequence[Row], headline: str | None) -> str:
    """Returns the table; without `headline`, the engine that the ratios are to, it has no ratios."""
    base = {row.workload: row.wall_s for row in rows if row.contender == headline}
    return _markdown(_HEAD, (_cells(row, base.get(row.workload)) for row in rows))


def _cells(row: Row, base_s: float | None) -> list[str]:
    return [
        row.workload,
        row.contender,
        f"{row.wall_s:.1f}",
        f"{row.wall_with_load_s:.1f}",
        "-" if base_s is None else f"{row.wall_s / base_s:.2f}",
        f"{row.tokens_per_s:,.0f}",
        f"{row.peak_bytes / 1e6:,.0f}",
        f"{row.peak_share:.0%} {row.precision}",
        f"{row.agreement:.0%}",
        f"{row.others_share:.1%}",
    ]


def _markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---" if column < 2 else "---:" for column in range(len(head))], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
