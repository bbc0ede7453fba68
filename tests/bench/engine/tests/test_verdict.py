"""From runs to rows, refusals, bars and the table."""

from __future__ import annotations

import unittest
from dataclasses import replace
from typing import Any

from engine import bars
from engine.contenders import Answer
from engine.judge import Expected, Result, agreement, wrong_counts
from engine.rows import Row, fastest_peer, rows
from engine.table import table
from engine.workloads import Line, Workload

REFERENCE = "llama.cpp bf16"


def _row(contender: str, workload: str = "short", **changes: Any) -> Row:
    plain = Row(
        contender=contender,
        is_peer=not contender.startswith("nightshift"),
        precision="int8" if contender.endswith(("int8", "w8a8")) else "bf16",
        workload=workload,
        runs=3,
        wall_s=10.0,
        wall_with_load_s=11.0,
        tokens_per_s=3_000.0,
        peak_bytes=500_000_000,
        peak_share=0.5,
        others_share=0.01,
        cached_share=0.9,
        wrong_counts=0,
        agreement=0.97,
    )
    return replace(plain, **changes)


def _result(wall_s: float, **changes: Any) -> Result:
    plain = Result(
        contender="nightshift int8",
        is_peer=False,
        precision="int8",
        workload="short",
        seed=1,
        wall_s=wall_s,
        load_s=1.0,
        others_share=0.0,
        peak_bytes=1,
        prompt_tokens=60,
        completion_tokens=40,
        cached_tokens=30,
        cacheable_tokens=40,
        wrong_counts=0,
        agreement=1.0,
        least_s={"bf16": 8.0, "int8": 4.0},
    )
    return replace(plain, **changes)


SOUND = [
    _row("nightshift int8", wall_s=10.0),
    _row("nightshift bf16", wall_s=14.0, peak_share=0.6),
    _row(REFERENCE, wall_s=40.0, peak_share=0.33),
    _row("vllm w8a8", wall_s=20.0),
]


class JudgeTest(unittest.TestCase):
    WORKLOAD = Workload(
        "short",
        1,
        (
            Line("a", (("user", "x"),), max_tokens=3),
            Line("b", (("user", "y"),), max_tokens=3, ignore_eos=False),
            Line("c", (("user", "z"),), max_tokens=3, ignore_eos=False, temperature=0.7, seed=1),
        ),
    )
    EXPECTED = Expected(prompts=((1, 2), (1, 3), (1, 4)), heads=("one two", "yes", "maybe"))

    def test_counts_are_exact_only_where_the_end_of_sequence_is_ignored(self) -> None:
        right = [Answer("", 2, 3, 0), Answer("", 2, 1, None), Answer("", 2, 3, 0)]
        self.assertEqual(wrong_counts(self.WORKLOAD, self.EXPECTED, right), 0)
        for line, wrong in (
            (0, Answer("", 2, 2, 0)),
            (0, Answer("", 3, 3, 0)),
            (1, Answer("", 2, 4, 0)),
            (1, Answer("", 2, 0, 0)),
        ):
            answers = [*right[:line], wrong, *right[line + 1 :]]
            self.assertEqual(wrong_counts(self.WORKLOAD, self.EXPECTED, answers), 1, wrong)

    def test_agreement_is_of_greedy_lines_whose_text_begins_alike(self) -> None:
        answers = [Answer("one two three", 2, 3, 0), Answer("no", 2, 1, 0), Answer("who knows", 2, 2, 0)]
        self.assertEqual(agreement(self.WORKLOAD, self.EXPECTED, answers), 0.5)


class RowsTest(unittest.TestCase):
    def test_a_row_has_medians_and_the_worst(self) -> None:
        (row,) = rows(
            [
                _result(8.0, others_share=0.04, peak_bytes=7, agreement=0.9, cached_tokens=20),
                _result(20.0, wrong_counts=2),
                _result(10.0),
            ]
        )
        self.assertEqual((row.wall_s, row.wall_with_load_s, row.tokens_per_s, row.runs), (10.0, 11.0, 10.0, 3))
        self.assertEqual((row.peak_bytes, row.others_share, row.agreement, row.wrong_counts), (7, 0.04, 0.9, 2))
        self.assertEqual((row.peak_share, row.cached_share), (0.4, 0.5))

    def test_rows_of_a_workload_stay_together(self) -> None:
        made = rows([_result(1.0), _result(1.0, workload="long"), _result(1.0, contender="vllm bf16")])
        self.assertEqual([row.workload for row in made], ["short", "short", "long"])

    def test_nightshift_is_not_its_own_rival(self) -> None:
        rival = fastest_peer(SOUND)
        self.assertEqual(rival and rival.contender, "vllm w8a8")


class RefusalTest(unittest.TestCase):
    def _reasons(self, changed: Row) -> list[str]:
        rest = [row for row in SOUND if (row.contender, row.workload) != (changed.contender, changed.workload)]
        return bars.refusals([*rest, changed], REFERENCE)

    def test_sound_rows_may_be_compared(self) -> None:
        self.assertEqual(bars.refusals(SOUND, REFERENCE), [])

    def test_each_thing_that_spoils_a_row_is_told(self) -> None:
        spoilt = (
            _row("vllm w8a8", others_share=0.06),
            _row("vllm w8a8", wrong_counts=1),
            _row("nightshift int8", agreement=0.79),
            _row("nightshift bf16", agreement=0.89),
            _row(REFERENCE, peak_share=0.27),
            _row("vllm bf16", workload="shared", cached_share=0.1),
        )
        for row in spoilt:
            (reason,) = self._reasons(row)
            self.assertIn(row.contender, reason)

    def test_int8_may_differ_more_often(self) -> None:
        self.assertEqual(self._reasons(_row("nightshift int8", agreement=0.85)), [])

    def test_peer_may_answer_as_it_likes(self) -> None:
        self.assertEqual(self._reasons(_row("vllm w8a8", agreement=0.39)), [])

    def test_nothing_is_compared_without_the_reference_on_short(self) -> None:
        self.assertEqual(len(bars.refusals(SOUND[:2], REFERENCE)), 1)


class BarsTest(unittest.TestCase):
    def _missed(self, rows: list[Row]) -> list[str]:
        return [bar.what for bar in bars.bars(rows, "nightshift int8") if not bar.holds]

    def test_sound_rows_reach_every_bar(self) -> None:
        self.assertEqual(self._missed(SOUND), [])
        self.assertEqual(bars.ratios(SOUND, "nightshift int8"), {"short": (2.0, "vllm w8a8")})

    def test_each_bar_can_be_missed(self) -> None:
        low = (
            _row("nightshift int8", wall_s=15.5),
            _row("nightshift int8", peak_share=0.44),
            _row("nightshift int8", peak_bytes=900_000_001),
            _row("nightshift bf16", peak_share=0.54),
        )
        for row in low:
            rest = [other for other in SOUND if other.contender != row.contender]
            self.assertEqual(len(self._missed([*rest, row])), 1, row)

    def test_shared_prefixes_have_the_higher_bar(self) -> None:
        rows = [_row("nightshift int8", "shared", wall_s=10.0), _row("vllm w8a8", "shared", wall_s=14.0)]
        self.assertEqual(len(self._missed(rows)), 1)

    def test_twice_the_lines_may_take_little_more_than_twice_as_long(self) -> None:
        held = [bar.holds for bar in bars.doubling_bars([(100, 1.0), (200, 2.1), (400, 4.5)])]
        self.assertEqual(held, [True, False])


class TableTest(unittest.TestCase):
    def test_table_has_ratios_to_the_headline(self) -> None:
        lines = table(SOUND, "nightshift int8").splitlines()
        self.assertEqual(
            lines[2], "| short | nightshift int8 | 10.0 | 11.0 | 1.00 | 3,000 | 500 | 50% int8 | 97% | 1.0% |"
        )
        self.assertIn("| 4.00 |", lines[4])
        self.assertEqual(len({line.count("|") for line in lines}), 1)

    def test_table_has_no_ratio_where_none_may_be_drawn(self) -> None:
        for line in table(SOUND, None).splitlines()[2:]:
            self.assertEqual(line.split(" | ")[4], "-")
