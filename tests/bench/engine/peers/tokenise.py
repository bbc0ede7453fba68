"""Counts in tokens what the driver has as text: `tokenise.py CHECKPOINT < QUESTION.json > ANSWER.json`.

The question is `{"conversations": [[{"role", "content"}, ...], ...], "answers": [text, ...], "head_tokens": 8}`,
the answer `{"prompts": [[token id, ...], ...], "heads": [text, ...]}`: a head is the text of an answer's first tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from transformers import AutoTokenizer


def main() -> None:
    """Answers the question on standard input."""
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    question: dict[str, Any] = json.load(sys.stdin)
    prompts = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for messages in question["conversations"]
    ]
    answer = {
        "prompts": [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts],
        "heads": [_head(tokenizer, text, question["head_tokens"]) for text in question["answers"]],
    }
    json.dump(answer, sys.stdout)


def _head(tokenizer: Any, text: str, tokens: int) -> str:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:tokens]
    # A character whose bytes go on behind the last token does not count.
    return tokenizer.decode(ids, clean_up_tokenization_spaces=False).rstrip("\N{REPLACEMENT CHARACTER}")


if __name__ == "__main__":
    main()
