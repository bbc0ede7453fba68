"""The generator: the same for a seed, other for another, and in the promised shapes."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from statistics import mean

from engine.workloads import NAMES, Line, generate


def _words(line: Line) -> int:
    return sum(len(content.split()) for _, content in line.messages)


class GeneratorTest(unittest.TestCase):
    def test_a_seed_makes_the_same_file_again_and_another_seed_another(self) -> None:
        for name in NAMES:
            self.assertEqual(generate(name, 7), generate(name, 7))
            first, second = generate(name, 7), generate(name, 8)
            contents = {line.messages for line in first.lines}
            self.assertFalse(contents & {line.messages for line in second.lines}, name)

    def test_each_workload_has_its_lines_new_tokens_and_end_rule(self) -> None:
        for name, lines, new_tokens in (("short", 200, 64), ("shared", 200, 16), ("long", 60, 32), ("dup", 200, 64)):
            made = generate(name, 1).lines
            self.assertEqual(len(made), lines)
            self.assertEqual(
                {(line.max_tokens, line.ignore_eos, line.temperature) for line in made}, {(new_tokens, True, 0.0)}
            )
        self.assertEqual(len(generate("short", 1, lines=800).lines), 800)

    def test_custom_ids_are_unique(self) -> None:
        for name in NAMES:
            made = generate(name, 1).lines
            self.assertEqual(len({line.custom_id for line in made}), len(made))

    def test_short_and_long_lines_are_all_their_own(self) -> None:
        for name, words in (("short", 45), ("long", 700)):
            made = generate(name, 1).lines
            self.assertEqual(len({line.messages for line in made}), len(made))
            self.assertAlmostEqual(mean(map(_words, made)), words, delta=words / 5)

    def test_shared_lines_have_one_system_message_and_differ_in_the_end(self) -> None:
        made = generate("shared", 1).lines
        self.assertEqual(len({line.messages[0] for line in made}), 1)
        self.assertGreater(len({line.messages[1] for line in made}), 150)

    def test_a_fifth_of_dup_repeats_a_line_that_is_there(self) -> None:
        made = generate("dup", 1).lines
        self.assertEqual(len({line.messages for line in made}), 160)

    def test_ragged_is_uneven_and_samples_a_third_with_seeds(self) -> None:
        made = generate("ragged", 1).lines
        self.assertFalse(any(line.ignore_eos for line in made))
        self.assertEqual(sum(not line.is_greedy for line in made), len(made) // 3)
        self.assertTrue(all((line.seed is None) == line.is_greedy for line in made))
        tokens = sorted(line.max_tokens for line in made)
        self.assertTrue(4 <= tokens[0] < 12 < 120 < tokens[-1] <= 200, tokens)
        words = sorted(map(_words, made))
        self.assertGreater(words[-1], 8 * words[0])

    def test_a_file_is_what_the_batch_api_takes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "in.jsonl")
            generate("ragged", 1).write(path, "a-model")
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        self.assertEqual({(record["method"], record["url"]) for record in records}, {("POST", "/v1/chat/completions")})
        self.assertEqual({record["body"]["model"] for record in records}, {"a-model"})
        self.assertEqual({"seed" in record["body"] for record in records}, {True, False})
        self.assertFalse(any("ignore_eos" in record["body"] for record in records))
