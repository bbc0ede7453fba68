"""The loop of a peer that stays loaded: one JSON object a line, in on standard input, out on standard output.

After loading it says `{"version": ..., "load_s": ...}`. For `{"bodies": [...]}` it answers
`{"wall_s": ..., "answers": [{"text", "prompt_tokens", "completion_tokens", "cached_tokens"}, ...]}`, or
`{"error": ...}`; at the end of input it ends. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass
class Answer:
    """What came back for one line."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that were not computed again; none where the peer does not tell."""


class Peer(Protocol):
    """A loaded peer."""

    version: str

    def prepare(self) -> None:
        """Forgets what earlier runs have left; not timed."""

    def run(self, bodies: list[dict[str, Any]]) -> list[Answer]:
        """Answers the bodies of chat completions, in their order."""


def serve(load: Callable[[], Peer]) -> None:
    """Loads the peer, runs what comes in, and returns at the end of input."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(record: dict[str, Any]) -> None:
        replies.write(json.dumps(record) + "\n")
        replies.flush()

    started = time.perf_counter()
    peer = load()
    reply({"version": peer.version, "load_s": time.perf_counter() - started})
    for line in sys.stdin:
        bodies = json.loads(line)["bodies"]
        try:
            peer.prepare()
            started = time.perf_counter()
            answers = peer.run(bodies)
            wall_s = time.perf_counter() - started
        except Exception as error:
            # Whatever it was, the driver has to learn of it.
            traceback.print_exc()
            reply({"error": repr(error)})
            continue
        reply({"wall_s": wall_s, "answers": [asdict(answer) for answer in answers]})
