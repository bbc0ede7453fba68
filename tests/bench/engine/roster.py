"""Who takes part, and in which settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from . import machine
from .contenders import Contender
from .contenders.llama_server import LlamaServer
from .contenders.nightshift import Nightshift
from .contenders.python_peer import PythonPeer
from .places import PEERS, Places

REFERENCE = "llama.cpp bf16"
"""Whose answers the others are compared with."""

_LLAMA_CPP = {REFERENCE: ("bf16", "bf16"), "llama.cpp q8_0": ("int8", "q8_0")}
"""Precision, and the form of the file."""

_VLLM = {
    f"vllm {form}{blocks}": (form, block_tokens)
    for form in ("bf16", "f32", "w8a8")
    for blocks, block_tokens in (("", None), (", blocks of 32", 32))
}
"""The form of the weights, and tokens of a block of the KV cache."""

_TRANSFORMERS = {"transformers bf16": "bf16", "transformers f32": "f32"}
_TORCH_TYPES = {"bf16": "bfloat16", "f32": "float32", "w8a8": "bfloat16"}

PEERS_ALL = (*_LLAMA_CPP, *_VLLM, *_TRANSFORMERS)


def usual_peers() -> list[str]:
    """Returns the peers in the forms that are fast on this processor."""
    slow = ("f32", "q8_0") if machine.multiplies_bf16() else ("bf16",)
    return [name for name in PEERS_ALL if name == REFERENCE or not any(form in name for form in slow)]


def nightshifts(program: Path, model: Path, precisions: Iterable[str] | None) -> list[Nightshift]:
    """Returns Nightshift in each precision, the one that the bars are about first: int8 where the program has it."""
    known = Nightshift.precisions(program)
    wanted = precisions or sorted(known, key=["int8", "bf16"].index)
    return [Nightshift(program, model, precision) for precision in wanted]


def peers(names: Iterable[str], places: Places, vllm_kv_gib: int) -> list[Contender]:
    """Returns the peers of these names, of `PEERS_ALL`."""
    return [_peer(name, places, vllm_kv_gib) for name in names]


def _peer(name: str, places: Places, vllm_kv_gib: int) -> Contender:
    threads = len(machine.cores())
    if name in _LLAMA_CPP:
        precision, form = _LLAMA_CPP[name]
        return LlamaServer(name, precision, places.llama_server, places.gguf(form), threads)
    log = places.runs / f"{name.replace(' ', '-').replace(',', '')}.log"
    if name in _TRANSFORMERS:
        script, checkpoint = "transformers_peer.py", places.bf16_checkpoint
        settings = ["--threads", str(threads), "--type", _TORCH_TYPES[_TRANSFORMERS[name]]]
        precision, environment = "bf16", _offline()
    else:
        form, block_tokens = _VLLM[name]
        script, checkpoint = "vllm_peer.py", places.w8a8_checkpoint if form == "w8a8" else places.bf16_checkpoint
        settings = ["--type", _TORCH_TYPES[form]]
        if block_tokens is not None:
            settings += ["--block-size", str(block_tokens)]
        precision, environment = "int8" if form == "w8a8" else "bf16", _vllm_environment(places, vllm_kv_gib)
    command = [str(places.python), str(PEERS / script), str(checkpoint), *settings]
    return PythonPeer(name, precision, command, environment, log)


def _vllm_environment(places: Places, kv_gib: int) -> dict[str, str]:
    return _offline() | {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, machine.cores())),
        "VLLM_CACHE_ROOT": str(places.cache / "vllm"),
        # In processes of their own, scheduler and worker wait for one another in a loop, at the cost of a core.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def _offline() -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def fresh(folder: Path) -> Path:
    """Empties a folder, and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
