"""Hugging Face transformers as a careful user runs it: `transformers_peer.py CHECKPOINT --threads N [--type TYPE]`.

Static batches of lines of like length. A long prefix that all lines have in common is computed once, by hand.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import service
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

_ROWS_MAX = 50
# Of a static batch, padding and new tokens included: larger ones are slower, and need gigabytes.
_BATCH_TOKENS_MAX = 8_192
# Below this, copying the cache costs more than it saves.
_PREFIX_TOKENS_MIN = 128


class Transformers:
    """A model on the processor."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._tokenizer = AutoTokenizer.from_pretrained(options.checkpoint)
        model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=options.type, attn_implementation="sdpa")
        self._model = model.eval()

    def prepare(self) -> None:
        """Nothing stays from run to run."""

    @torch.inference_mode()
    def run(self, bodies: list[dict[str, Any]]) -> list[service.Answer]:
        """Cuts the lines into batches, longest first, and runs one after the other."""
        texts = [
            self._tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
            for body in bodies
        ]
        prompts = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        prefix = _common_prefix(prompts)
        cache = None
        if prefix:
            cache = self._model(torch.tensor([prompts[0][:prefix]]), use_cache=True).past_key_values
        answers: list[service.Answer | None] = [None] * len(bodies)
        for lines in _batches(bodies, prompts):
            for line, answer in zip(lines, self._batch(lines, bodies, prompts, prefix, cache), strict=True):
                answers[line] = answer
        return [answer for answer in answers if answer is not None]

    def _batch(
        self,
        lines: list[int],
        bodies: list[dict[str, Any]],
        prompts: list[list[int]],
        prefix: int,
        cache: Any,
    ) -> list[service.Answer]:
        pad = self._tokenizer.pad_token_id
        longest = max(len(prompts[line]) for line in lines)
        rows, mask = [], []
        for line in lines:
            prompt, padding = prompts[line], longest - len(prompts[line])
            # The padding goes between what all have in common and the rest.
            rows.append(prompt[:prefix] + [pad] * padding + prompt[prefix:])
            mask.append([1] * prefix + [0] * padding + [1] * (len(prompt) - prefix))
        arguments: dict[str, Any] = {}
        if cache is not None:
            copied = copy.deepcopy(cache)
            copied.batch_repeat_interleave(len(lines))
            arguments["past_key_values"] = copied
        first = bodies[lines[0]]
        new_tokens = max(bodies[line]["max_tokens"] for line in lines)
        if first.get("ignore_eos", False):
            arguments["min_new_tokens"] = new_tokens
        if first["temperature"] > 0:
            torch.manual_seed(first["seed"])
            arguments |= {"do_sample": True, "temperature": first["temperature"], "top_k": 0, "top_p": 1.0}
        else:
            arguments["do_sample"] = False
        generated = self._model.generate(
            input_ids=torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=new_tokens,
            pad_token_id=pad,
            **arguments,
        )
        return [
            self._answer(bodies[line], prompts[line], row[longest:].tolist())
            for line, row in zip(lines, generated, strict=True)
        ]

    def _answer(self, body: dict[str, Any], prompt: list[int], tokens: list[int]) -> service.Answer:
        tokens = tokens[: body["max_tokens"]]
        end = self._tokenizer.eos_token_id
        if not body.get("ignore_eos", False) and end in tokens:
            tokens = tokens[: tokens.index(end) + 1]
        return service.Answer(
            text=self._tokenizer.decode(tokens, skip_special_tokens=True),
            prompt_tokens=len(prompt),
            completion_tokens=len(tokens),
        )


def _common_prefix(prompts: list[list[int]]) -> int:
    """Counts the tokens that all prompts begin with, the last of a prompt left out; 0 where it is not worth it."""
    least, most = min(prompts), max(prompts)
    common = 0
    while common < min(map(len, prompts)) - 1 and least[common] == most[common]:
        common += 1
    return common if common >= _PREFIX_TOKENS_MIN and len(prompts) > 1 else 0


def _batches(bodies: list[dict[str, Any]], prompts: list[list[int]]) -> list[list[int]]:
    """Cuts the lines into batches that waste little: of one way to sample, and of like lengths."""
    order = sorted(
        range(len(bodies)),
        key=lambda line: (bodies[line]["temperature"], bodies[line]["max_tokens"], len(prompts[line])),
        reverse=True,
    )
    batches: list[list[int]] = []
    for line in order:
        if batches and _fits(batches[-1] + [line], bodies, prompts):
            batches[-1].append(line)
        else:
            batches.append([line])
    return batches


def _fits(lines: list[int], bodies: list[dict[str, Any]], prompts: list[list[int]]) -> bool:
    longest = max(len(prompts[line]) for line in lines) + max(bodies[line]["max_tokens"] for line in lines)
    same = len({bodies[line]["temperature"] for line in lines}) == 1
    return same and len(lines) <= _ROWS_MAX and len(lines) * longest <= _BATCH_TOKENS_MAX


def main() -> None:
    """Serves until the end of input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--type", default="bfloat16", help="of weights and activations")
    options = parser.parse_args()
    service.serve(lambda: Transformers(options))


if __name__ == "__main__":
    main()
