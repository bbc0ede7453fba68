"""What a run comes to: its answers against the reference's, its time against the least that the cores need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import work
from .contenders import Answer, Contender, Timing
from .places import PEERS, Places, ask_script
from .workloads import Workload

HEAD_TOKENS = 8


@dataclass(frozen=True)
class Expected:
    """What every engine's answers to a workload are held against."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each line, in the chat template."""
    heads: tuple[str, ...]
    """How the reference's answers begin: the text of their first `HEAD_TOKENS` tokens.

    Text is what all engines give back. Two answers whose first tokens are equal begin with the same text; the
    reverse fails only where other tokens spell the same.
    """

    @classmethod
    def of(cls, workload: Workload, reference: Sequence[Answer], places: Places) -> Expected:
        """Lets the model's tokeniser cut the prompts and the reference's answers."""
        question = {
            "conversations": [line.body("")["messages"] for line in workload.lines],
            "answers": [answer.text for answer in reference],
            "head_tokens": HEAD_TOKENS,
        }
        command = [str(places.python), str(PEERS / "tokenise.py"), str(places.bf16_checkpoint)]
        answer = ask_script(command, question)
        return cls(tuple(map(tuple, answer["prompts"])), tuple(answer["heads"]))


@dataclass(frozen=True)
class Result:
    """One run, in figures."""

    contender: str
    is_peer: bool
    precision: str
    workload: str
    seed: int
    wall_s: float
    load_s: float
    others_share: float
    peak_bytes: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    cacheable_tokens: int
    """Prompt tokens that an endless prefix cache would have saved."""
    wrong_counts: int
    """Lines whose number of prompt or new tokens is not what was asked for."""
    agreement: float
    """Share of the greedy lines that begin as the reference's do."""
    least_s: dict[str, float]
    """What the work takes at the peak, by precision."""

    @property
    def peak_share(self) -> float:
        """Useful FLOP/s as a share of the peak of its own precision."""
        return self.least_s[self.precision] / self.wall_s


def judge(
    contender: Contender,
    workload: Workload,
    timing: Timing,
    expected: Expected,
    shape: work.ModelShape,
    peak: work.Peak,
) -> Result:
    """Weighs one run."""
    answers = timing.answers
    done = work.needed(
        work.Request(prompt, answer.completion_tokens, line.is_greedy, line.max_tokens, line.ignore_eos)
        for line, prompt, answer in zip(workload.lines, expected.prompts, answers, strict=True)
    )
    prompts_alone = work.needed(work.Request(prompt, 0, False, 0, True) for prompt in expected.prompts)
    prompt_tokens = sum(map(len, expected.prompts))
    cached = [answer.cached_tokens for answer in answers]
    return Result(
        contender=contender.name,
        is_peer=contender.is_peer,
        precision=contender.precision,
        workload=workload.name,
        seed=workload.seed,
        wall_s=timing.wall_s,
        load_s=timing.load_s,
        others_share=timing.others_share,
        peak_bytes=timing.peak_bytes,
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(answer.completion_tokens for answer in answers),
        cached_tokens=None if None in cached else sum(tokens or 0 for tokens in cached),
        cacheable_tokens=prompt_tokens - prompts_alone.forward_tokens,
        wrong_counts=wrong_counts(workload, expected, answers),
        agreement=agreement(workload, expected, answers),
        least_s={precision: peak.least_seconds(shape, done, precision) for precision in ("bf16", "int8")},
    )


def wrong_counts(workload: Workload, expected: Expected, answers: Sequence[Answer]) -> int:
    """Counts the lines whose usage cannot be right."""
    wrong = 0
    for line, prompt, answer in zip(workload.lines, expected.prompts, answers, strict=True):
        new_are_wrong = (
            answer.completion_tokens != line.max_tokens
            if line.ignore_eos
            else not 0 < answer.completion_tokens <= line.max_tokens
        )
        wrong += answer.prompt_tokens != len(prompt) or new_are_wrong
    return wrong


def agreement(workload: Workload, expected: Expected, answers: Sequence[Answer]) -> float:
    """Returns the share of greedy lines that begin as the reference's do."""
    agrees = [
        answer.text.startswith(head)
        for line, head, answer in zip(workload.lines, expected.heads, answers, strict=True)
        if line.is_greedy
    ]
    return sum(agrees) / len(agrees)


def as_record(result: Result) -> dict[str, Any]:
    """Returns what the output file has of a run."""
    return vars(result) | {"peak_share": result.peak_share}
