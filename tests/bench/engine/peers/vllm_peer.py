"""vLLM's offline interface, with its prefix cache: `vllm_peer.py CHECKPOINT [--type TYPE] [--block-size N]`."""

from __future__ import annotations

import argparse
from typing import Any

import service
import vllm
from vllm import LLM, SamplingParams

_CONTEXT_TOKENS = 2_048


class Vllm:
    """One engine, kept over all workloads: it takes more than a minute to start."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.version = f"vllm {vllm.__version__}"
        block_size = {} if options.block_size is None else {"block_size": options.block_size}
        self._engine = LLM(
            model=options.checkpoint,
            dtype=options.type,
            max_num_seqs=options.sequences,
            max_num_batched_tokens=options.step_tokens,
            max_model_len=_CONTEXT_TOKENS,
            enable_prefix_caching=True,
            disable_log_stats=True,
            **block_size,
        )
        # Compiles what is compiled at the first use only.
        hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
        self.run([hello] * 4)

    def prepare(self) -> None:
        """Empties the prefix cache."""
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use")

    def run(self, bodies: list[dict[str, Any]]) -> list[service.Answer]:
        """Hands over all lines at once."""
        parameters = [
            SamplingParams(
                temperature=body["temperature"],
                max_tokens=body["max_tokens"],
                ignore_eos=body.get("ignore_eos", False),
            )
            for body in bodies
        ]
        outputs = self._engine.chat([body["messages"] for body in bodies], parameters, use_tqdm=False)
        return [
            service.Answer(
                text=output.outputs[0].text,
                prompt_tokens=len(output.prompt_token_ids),
                completion_tokens=len(output.outputs[0].token_ids),
                cached_tokens=output.num_cached_tokens or 0,
            )
            for output in outputs
        ]


def main() -> None:
    """Serves until the end of input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--type", default="bfloat16", help="of activations, and of weights that are not quantised")
    parser.add_argument("--block-size", type=int, help="tokens of a block of the KV cache; vLLM's choice by default")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--step-tokens", type=int, default=2_048)
    options = parser.parse_args()
    service.serve(lambda: Vllm(options))


if __name__ == "__main__":
    main()
