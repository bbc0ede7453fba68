"""Writes dequant.jsonl, tiny.gguf and tiny/: test data made by the gguf and tokenizers packages.

    pip install gguf numpy tokenizers && python make.py

tiny.gguf and tiny/ are one model of random weights and one tokenizer in the two formats, so that a test
can compare what is read from either.
"""

import json
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import dequantize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 32, 2, 1, 16, 32, 112
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = "<tool>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "a n", "an d", "r e"]
BYTES = ["Ġ", "Ċ", *map(chr, range(0x21, 0x7F))]


def main():
    rng = np.random.default_rng(7)
    write_blocks(rng)
    tokens = [*SPECIALS, *BYTES, *(m.replace(" ", "") for m in MERGES), USER_DEFINED]
    tensors = make_tensors(rng)
    write_gguf(tokens, tensors)
    write_folder(tokens, tensors)


def write_blocks(rng):
    lines = []
    for kind, size, halves in [
        (Type.Q4_0, 18, [0]), (Type.Q4_1, 20, [0, 2]), (Type.Q8_0, 34, [0]),
        (Type.Q4_K, 144, [0, 2]), (Type.Q6_K, 210, [208]), (Type.F16, 64, range(0, 64, 2)),
    ]:
        for _ in range(2):
            block = rng.integers(0, 256, size, dtype=np.uint8)
            for at in halves:
                block[at:at + 2] = np.frombuffer(np.float16(rng.normal() * 0.05).tobytes(), dtype=np.uint8)
            values = block.view(np.float16).astype(np.float32) if kind == Type.F16 else dequantize(block[None, :], kind)[0]
            bits = "".join("%08x" % x for x in values.view(np.uint32))
            lines.append(json.dumps({"format": kind.name, "block": block.tobytes().hex(), "bits": bits}))
    (HERE / "dequant.jsonl").write_text("\n".join(lines) + "\n")


def make_tensors(rng):
    """By the names of Hugging Face: (type, array)."""
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        layer + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        layer + "mlp.gate_proj.weight": (MLP, HIDDEN),
        layer + "mlp.up_proj.weight": (MLP, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, MLP),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        "model.norm.weight": (HIDDEN,),
    }
    return {
        name: ("F32" if len(shape) == 1 else "F16", rng.normal(size=shape).astype(np.float32 if len(shape) == 1 else np.float16))
        for name, shape in shapes.items()
    }


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm", "model.norm": "output_norm", "model.layers": "blk",
}


def write_gguf(tokens, tensors):
    writer = GGUFWriter(str(HERE / "tiny.gguf"), "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in SPECIALS else 4 if t == USER_DEFINED else 1 for t in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, (_, array) in tensors.items():
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        if "attn_q" in name or "attn_k" in name:
            heads = array.shape[0] // HEAD_DIM
            # As llama.cpp's converter does: halves become pairs.
            array = array.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(tokens, tensors):
    folder = HERE / "tiny"
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": [0, 2], "head_dim": None,
        "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": MLP, "max_position_embeddings": 64,
        "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "float16", "vocab_size": VOCAB,
    })
    write_json(folder / "tokenizer_config.json", {
        "bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "chat_template": TEMPLATE,
    })
    vocab = {t: i for i, t in enumerate(tokens) if t != USER_DEFINED}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split()) for m in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    header, data = {}, b""
    for name, (kind, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


main()
