"""What a file needs at least: tokens through the network, tokens sampled, and positions attended to.

A prefix that prompts have in common is needed once, and so is a greedy line that is there twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Request(NamedTuple):
    """One line, as far as its cost goes."""

    prompt: tuple[int, ...]
    """Token ids."""
    generated_tokens: int
    is_greedy: bool
    max_tokens: int
    ignore_eos: bool


@dataclass(frozen=True)
class Work:
    """What has to be computed."""

    forward_tokens: int
    """Tokens that pass through the layers: the last one of a line does not."""
    sampled_tokens: int
    attended_positions: int
    """Summed over the forward tokens: positions that each looks at, its own among them."""


def needed(requests: Iterable[Request]) -> Work:
    """Counts the work of all requests together."""
    distinct = list(_distinct(requests))
    forward = attended = 0
    before: Sequence[int] = ()
    # In this order, what a prompt shares with any earlier one it shares with the one just before it.
    for prompt in sorted(request.prompt for request in distinct):
        shared = _common(before, prompt)
        forward += len(prompt) - shared
        attended += _sum_of_positions(shared, len(prompt))
        before = prompt
    for request in distinct:
        decoded = max(0, request.generated_tokens - 1)
        forward += decoded
        attended += _sum_of_positions(len(request.prompt), len(request.prompt) + decoded)
    return Work(forward, sum(request.generated_tokens for request in distinct), attended)


def _distinct(requests: Iterable[Request]) -> Iterable[Request]:
    seen = set()
    for request in requests:
        key = (request.prompt, request.max_tokens, request.ignore_eos)
        if not request.is_greedy or key not in seen:
            yield request
        if request.is_greedy:
            seen.add(key)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    common = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        common += 1
    return common


def _sum_of_positions(start: int, end: int) -> int:
    """Sums 1 to `end`, without 1 to `start`: the token at position p looks at p + 1 positions."""
    return (end * (end + 1) - start * (start + 1)) // 2


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a dense decoder with gated feed-forward layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int

    @classmethod
    def load(cls, folder: Path) -> ModelShape:
        """Reads the `config.json` of a folder in the form of Hugging Face."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            feed_forward=config["intermediate_size"],
            vocabulary=config["vocab_size"],
        )

    def linear_flop(self, work: Work) -> int:
        """FLOP inside matrix products with weights; a multiplication and an addition are two."""
        queries_and_output = 2 * self.hidden * self.heads * self.head_dim
        keys_and_values = 2 * self.hidden * self.kv_heads * self.head_dim
        weights = self.layers * (queries_and_output + keys_and_values + 3 * self.hidden * self.feed_forward)
        return 2 * (weights * work.forward_tokens + self.hidden * self.vocabulary * work.sampled_tokens)

    def attention_flop(self, work: Work) -> int:
        """FLOP of scores and weighted sums: two products of a head's width for each position and query head."""
        return 4 * self.layers * self.heads * self.head_dim * work.attended_positions


@dataclass(frozen=True)
class Peak:
    """What the cores do when every operand is in a register."""

    bf16_gflops: float
    int8_gops: float
    instructions: str
    """Those that the peak is of."""

    def least_seconds(self, shape: ModelShape, work: Work, precision: str) -> float:
        """Returns the time that `work` takes at the peak; attention is in bf16 in either precision."""
        linear = {"bf16": self.bf16_gflops, "int8": self.int8_gops}[precision]
        return (shape.linear_flop(work) / linear + shape.attention_flop(work) / self.bf16_gflops) / 1e9
