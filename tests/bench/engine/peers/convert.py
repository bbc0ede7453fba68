"""Writes a GGUF file as checkpoints that the Python peers read: `convert.py MODEL.gguf FOLDER`.

`FOLDER/hf-bf16` has the dequantised weights in bf16, `FOLDER/hf-w8a8` int8 weights with one scale a row, for
activations that are rounded to int8 row by row at run time (compressed-tensors). Needs torch, transformers and gguf.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_WEIGHTS = "model.safetensors"
_INT8_MAX = 127

# What compressed-tensors calls W8A8 with dynamic activations. The head stays in bf16, as vLLM requires of tied ones.
_W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": ["lm_head"],
    "config_groups": {
        "linears": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def main() -> None:
    """Converts the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    dequantised = _load_dequantised(options.gguf)
    tokenizer = AutoTokenizer.from_pretrained(options.gguf.parent, gguf_file=options.gguf.name)
    bf16, w8a8 = options.folder / "hf-bf16", options.folder / "hf-w8a8"
    _write_w8a8(dequantised, w8a8)
    dequantised.to(torch.bfloat16).save_pretrained(bf16)
    for folder in (bf16, w8a8):
        tokenizer.save_pretrained(folder)


def _load_dequantised(gguf: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain ones from here on: a note of how the file held them would mislead their readers.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    return model


def _write_w8a8(model: torch.nn.Module, folder: Path) -> None:
    """Quantises from f32, so that no weight is rounded twice."""
    model.save_pretrained(folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / _WEIGHTS).items():
        if name.endswith("_proj.weight"):
            largest = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-8)
            # Levels of the scale as it is stored.
            scale = (largest / _INT8_MAX).to(torch.bfloat16)
            levels = (weight / scale.float()).round().clamp(-_INT8_MAX, _INT8_MAX)
            tensors[name] = levels.to(torch.int8)
            tensors[name + "_scale"] = scale
        else:
            tensors[name] = weight.to(torch.bfloat16)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"dtype": "bfloat16", "quantization_config": _W8A8}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
