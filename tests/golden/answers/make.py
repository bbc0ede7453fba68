"""Writes transformers-f32.json: greedy answers of transformers in f32 on the dequantised model.

    python make.py --gguf MODEL.gguf --node-folder FOLDER

The prompts are rendered with the chat template stored in the GGUF and tokenised by llama.cpp
(../tokens/tokenise.mjs), so the tokeniser of transformers has no part in the result.
"""

import argparse
import json
import pathlib
import subprocess

import jinja2.sandbox
import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = 20
STEPS = 32


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--gguf", required=True)
    args.add_argument("--node-folder", required=True)
    args.add_argument("--out", default=HERE / "transformers-f32.json")
    args = args.parse_args()
    torch.set_num_threads(1)
    gguf = pathlib.Path(args.gguf).resolve()
    reader = GGUFReader(str(gguf))
    prompts = json.loads((HERE / "prompts.json").read_text())[:PROMPTS]
    prompt_ids = tokenise(args, render(reader, prompts))

    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    check_config(reader, model.config)
    check_weights(reader, model)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()

    out = []
    for prompt, ids in zip(prompts, prompt_ids):
        greedy, gaps, top = continue_greedily(model, ids)
        text = detokenise(tokens, greedy)
        print(prompt["custom_id"], len(ids), "min gap %.4f" % min(gaps), json.dumps(text), flush=True)
        out.append({"custom_id": prompt["custom_id"], "prompt_ids": ids, "greedy_ids": greedy,
                    "gaps": gaps, "text": text, "last_logits_top": top})
    lines = ",\n".join(json.dumps(o) for o in out)
    pathlib.Path(args.out).write_text("[\n" + lines + "\n]\n")


def render(reader, prompts):
    source = reader.fields["tokenizer.chat_template"].contents()
    # The options are those under which transformers renders chat templates.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = env.from_string(source)
    return [template.render(messages=p["messages"], add_generation_prompt=True) for p in prompts]


def tokenise(args, texts):
    lines = "".join(json.dumps({"text": t, "special": True}) + "\n" for t in texts)
    done = subprocess.run(
        ["node", str(HERE.parent / "tokens" / "tokenise.mjs"), args.gguf, args.node_folder],
        input=lines, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def detokenise(tokens, ids):
    """The text of the ids, special tokens included."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}
    return bytes(byte_of[c] for i in ids for c in tokens[i]).decode("utf-8", "replace")


@torch.no_grad()
def continue_greedily(model, ids):
    """Never stops early: the ids after an end token are part of the reference too."""
    greedy, gaps, top = [], [], None
    cache, step = None, torch.tensor([ids])
    for _ in range(STEPS):
        done = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache, logits = done.past_key_values, done.logits[0, -1]
        best = torch.topk(logits, 10)
        if top is None:
            top = [[int(i), round(float(v), 5)] for v, i in zip(best.values, best.indices)]
        greedy.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        step = torch.tensor([[greedy[-1]]])
    return greedy, gaps, top


def check_config(reader, config):
    field = lambda name: reader.fields["llama." + name].contents()
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    assert rope["rope_theta"] == field("rope.freq_base"), rope
    assert rope.get("rope_type", "default") == "default", rope
    assert config.num_attention_heads == field("attention.head_count")
    assert config.num_key_value_heads == field("attention.head_count_kv")
    assert config.rms_norm_eps == field("attention.layer_norm_rms_epsilon")
    assert config.num_hidden_layers == field("block_count")


def check_weights(reader, model):
    """Every tensor as transformers loaded it equals gguf-py's dequantisation of the file."""
    state = model.state_dict()
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    worst = 0.0
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        want = dequantize(tensor.data, tensor.tensor_type)
        count = heads.get(parts[2]) if parts[0] == "blk" else None
        if count:
            # The file holds q and k with the rope pairs side by side (2i, 2i+1);
            # transformers wants them half a head apart.
            rows, columns = want.shape
            want = want.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        got = state[name].numpy()
        assert got.dtype == np.float32 and got.shape == want.shape, name
        worst = max(worst, float(np.abs(got - want).max()))
    assert worst == 0.0, worst
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    print(len(reader.tensors), "tensors equal to gguf-py's dequantisation, output tied to the embedding")


if __name__ == "__main__":
    main()
