"""The five files that are timed, made from a seed.

| name   | lines | prompt                                            | new tokens             | end of sequence |
|--------|-------|---------------------------------------------------|------------------------|-----------------|
| short  | 200   | about 60 tokens of its own                        | 64                     | ignored         |
| shared | 200   | about 600 tokens in common, then about 25         | 16                     | ignored         |
| long   | 60    | about 1,000 tokens of its own                     | 32                     | ignored         |
| dup    | 200   | as short, but a fifth of the lines repeat another | 64                     | ignored         |
| ragged | 200   | lognormal, 40 to 800 tokens                       | lognormal, at most 200 | honoured        |

The chat template adds its own tokens. Everything is at temperature 0, but for a third of `ragged`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from . import prose

# Of English prose with numbers, with the tokeniser of SmolLM2. Prompts only have to come out about right.
_CHARACTERS_PER_TOKEN = 3.6
_EXAMPLES = 22
_REPORT_SENTENCES = 41


@dataclass(frozen=True)
class Line:
    """One request."""

    custom_id: str
    messages: tuple[tuple[str, str], ...]
    """Role and content."""
    max_tokens: int
    ignore_eos: bool = True
    temperature: float = 0.0
    seed: int | None = None

    def body(self, model: str) -> dict[str, Any]:
        """Returns the body as OpenAI's API takes it, with the extension `ignore_eos`."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": role, "content": content} for role, content in self.messages],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        if self.seed is not None:
            body["seed"] = self.seed
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body

    @property
    def is_greedy(self) -> bool:
        """Whether every engine should give the same answer."""
        return self.temperature == 0


@dataclass(frozen=True)
class Workload:
    """The lines of one file."""

    name: str
    seed: int
    lines: tuple[Line, ...]

    def write(self, path: Path, model: str) -> None:
        """Writes the lines as a batch file."""
        with path.open("w", encoding="utf-8") as file:
            for line in self.lines:
                record = {
                    "custom_id": line.custom_id,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": line.body(model),
                }
                file.write(json.dumps(record) + "\n")


def generate(name: str, seed: int, lines: int | None = None) -> Workload:
    """Makes the workload `name`, one of `NAMES`, of its usual number of lines or of `lines`."""
    make, usual_lines = _MAKERS[name]
    random = Random(f"{name} {seed}")
    made = make(random, lines or usual_lines)
    named = (replace(line, custom_id=f"{name}-{number:05}") for number, line in enumerate(made))
    return Workload(name, seed, tuple(named))


def _user_line(content: str, max_tokens: int) -> Line:
    return Line("", (("user", content),), max_tokens)


def _sentences(random: Random, count: int) -> str:
    return " ".join(prose.sentence(random) for _ in range(count))


def _short(random: Random, lines: int) -> Iterator[Line]:
    for number in range(lines):
        head = f"Note {number}."
        yield _user_line(f"{head} {_sentences(random, 2)} {prose.request(random)}", 64)


def _shared(random: Random, lines: int) -> Iterator[Line]:
    examples = []
    for number in range(_EXAMPLES):
        label = prose.LABELS[number % len(prose.LABELS)]
        examples.append(f"Note: {prose.note(random, label)}\nDrawer: {label}")
    system = (
        "Notes from the island go into one of five drawers. Reply with the name of the drawer alone: "
        f"{', '.join(prose.LABELS)}.\n\n" + "\n".join(examples)
    )
    for _ in range(lines):
        note = prose.note(random, random.choice(prose.LABELS))
        yield Line("", (("system", system), ("user", f"Note: {note}\nDrawer:")), 16)


def _long(random: Random, lines: int) -> Iterator[Line]:
    for number in range(lines):
        head = f"Log of week {random.randint(1_000, 9_999)}/{number}."
        report = _sentences(random, _REPORT_SENTENCES)
        yield _user_line(f"{head} {report}\n\nPut this week into one sentence.", 32)


def _dup(random: Random, lines: int) -> Iterator[Line]:
    repeated = lines // 5
    firsts = list(_short(random, lines - repeated))
    repeats = [random.choice(firsts) for _ in range(repeated)]
    mixed = firsts + repeats
    random.shuffle(mixed)
    yield from mixed


def _ragged(random: Random, lines: int) -> Iterator[Line]:
    for number in range(lines):
        prompt_tokens = _lognormal(random, median=110, sigma=0.85, least=40, most=800)
        max_tokens = _lognormal(random, median=48, sigma=0.8, least=4, most=200)
        head, tail = f"Page {random.randint(1_000, 9_999)}/{number}.", prose.request(random)
        content = f"{head} {prose.sentence(random)}"
        while len(content) + len(tail) < prompt_tokens * _CHARACTERS_PER_TOKEN:
            content += " " + prose.sentence(random)
        line = replace(_user_line(f"{content} {tail}", max_tokens), ignore_eos=False)
        if number % 3 == 2:
            line = replace(line, temperature=0.7, seed=random.randrange(2**31))
        yield line


def _lognormal(random: Random, *, median: float, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, round(median * random.lognormvariate(0, sigma))))


_MAKERS = {
    "short": (_short, 200),
    "shared": (_shared, 200),
    "long": (_long, 60),
    "dup": (_dup, 200),
    "ragged": (_ragged, 200),
}
NAMES = tuple(_MAKERS)
