"""The arithmetic of what has to be computed."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from engine.work import ModelShape, Peak, Request, Work, needed

SMOLLM2_135M = ModelShape(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1_536, vocabulary=49_152
)


def _request(*prompt: int, generated: int = 1, is_greedy: bool = True) -> Request:
    return Request(tuple(prompt), generated, is_greedy, max_tokens=9, ignore_eos=True)


class WorkTest(unittest.TestCase):
    def test_a_line_is_its_prompt_and_all_new_tokens_but_the_last(self) -> None:
        self.assertEqual(needed([_request(5, 6, 7, generated=3)]), Work(5, 3, 1 + 2 + 3 + 4 + 5))

    def test_a_line_without_an_answer_is_its_prompt(self) -> None:
        self.assertEqual(needed([_request(5, 6, generated=0)]), Work(2, 0, 3))

    def test_a_shared_prefix_counts_once_in_any_order(self) -> None:
        lines = [_request(1, 2, 3), _request(9), _request(1, 2, 4), _request(1, 5)]
        expected = Work(forward_tokens=3 + 1 + 1 + 1, sampled_tokens=4, attended_positions=(1 + 2 + 3) + 1 + 3 + 2)
        self.assertEqual(needed(lines), expected)
        self.assertEqual(needed(lines[::-1]), expected)

    def test_a_repeated_line_counts_once_if_it_is_greedy(self) -> None:
        self.assertEqual(needed([_request(1, 2, generated=4)] * 3), needed([_request(1, 2, generated=4)]))
        sampled = needed([_request(1, 2, generated=4, is_greedy=False)] * 3)
        self.assertEqual(sampled, Work(2 + 3 * 3, 12, 3 + 3 * (3 + 4 + 5)))

    def test_the_same_prompt_with_more_new_tokens_is_another_line(self) -> None:
        longer = _request(1, 2)._replace(max_tokens=10)
        self.assertEqual(needed([_request(1, 2), longer]).sampled_tokens, 2)


class ModelShapeTest(unittest.TestCase):
    def test_flop_of_a_token_of_smollm2_135m(self) -> None:
        one = Work(forward_tokens=1, sampled_tokens=0, attended_positions=0)
        self.assertEqual(SMOLLM2_135M.linear_flop(one), 212_336_640)
        self.assertEqual(SMOLLM2_135M.linear_flop(Work(0, 1, 0)), 56_623_104)
        self.assertEqual(SMOLLM2_135M.attention_flop(Work(0, 0, 1)), 69_120)

    def test_sizes_that_a_config_leaves_out_follow_from_others(self) -> None:
        config = {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 100,
        }
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
            shape = ModelShape.load(Path(folder))
        self.assertEqual(shape, ModelShape(2, 64, 4, 4, 16, 96, 100))


class PeakTest(unittest.TestCase):
    def test_attention_takes_its_bf16_time_in_int8_too(self) -> None:
        peak = Peak(bf16_gflops=100.0, int8_gops=200.0, instructions="")
        work = Work(forward_tokens=1_000, sampled_tokens=10, attended_positions=50_000)
        linear, attention = SMOLLM2_135M.linear_flop(work), SMOLLM2_135M.attention_flop(work)
        self.assertAlmostEqual(peak.least_seconds(SMOLLM2_135M, work, "bf16"), (linear + attention) / 100e9)
        self.assertAlmostEqual(peak.least_seconds(SMOLLM2_135M, work, "int8"), linear / 200e9 + attention / 100e9)
