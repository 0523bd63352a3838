#!/usr/bin/env python3
"""Writes a Llama from a GGUF file as safetensors in F32, rotated by Hadamard matrices, in the form that Narthex reads.

    pip install gguf==0.19.0 safetensors==0.8.0
    python rotate.py MODEL.gguf TOKENIZER.json OUT [--plain]

The rotations are R1 and R2 of SpinQuant (Liu et al. 2024, arXiv:2405.16406) with random signs, as in QuaRot (Ashkboos et
al. 2024, arXiv:2404.00456): the residual stream, and the values of each head. They are folded into the weights, together
with the gains of the norms, so the model computes the same function. The head becomes a weight of its own. With --plain,
the weights stay as they are.
"""

import argparse
import json
import pathlib
import shutil

import gguf
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import save_file


def is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, int(number**0.5) + 1))


def paley(size: int) -> np.ndarray | None:
    """Returns a Hadamard matrix by one of Paley's constructions over a prime field, or None if neither has this size."""
    if size == 1:
        return np.ones((1, 1))
    for prime, second in [(size - 1, False), (size // 2 - 1, True)]:
        if size % 4 or not is_prime(prime) or (prime % 4 == 1) != second:
            continue
        squares = {x * x % prime for x in range(1, prime)}
        character = np.array([0] + [1 if x in squares else -1 for x in range(1, prime)])
        core = character[(np.arange(prime)[:, None] - np.arange(prime)) % prime]
        bordered = np.zeros((prime + 1, prime + 1))
        bordered[0, 1:], bordered[1:, 0], bordered[1:, 1:] = 1, 1 if second else -1, core
        unit = np.eye(prime + 1)
        if not second:
            return bordered + unit
        return np.kron(bordered, [[1, 1], [1, -1]]) + np.kron(unit, [[1, -1], [-1, -1]])
    return None


def hadamard(size: int) -> np.ndarray:
    """Returns an orthogonal Hadamard matrix: the smallest of Paley's matrices that doubling takes to this size."""
    part = size
    while part % 2 == 0:
        part //= 2
    while part < size and paley(part) is None:
        part *= 2
    matrix = paley(part)
    if matrix is None:
        raise SystemExit(f"no Hadamard matrix of {size} is known to this program")
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


def read(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    """Returns the weights with the names and the order of rows of transformers."""
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            weights[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]]] = values
            continue
        count = {"attn_q": heads, "attn_k": kv_heads}.get(parts[2])
        if count:
            # GGUF has the two halves of a rotary pair next to each other.
            rows = values.reshape(count, len(values) // count // 2, 2, -1)
            values = rows.swapaxes(1, 2).reshape(values.shape)
        weights[f"model.layers.{parts[1]}.{names[parts[2]]}"] = values
    return weights


def rotate(weights: dict[str, np.ndarray], layers: int, heads: int, kv_heads: int) -> None:
    table = weights["model.embed_tokens"]
    hidden = table.shape[1]
    stream = np.random.default_rng(0).choice([-1.0, 1.0], hidden)[:, None] * hadamard(hidden)
    weights["lm_head"] = table * weights["model.norm"] @ stream
    weights["model.embed_tokens"] = table @ stream
    weights["model.norm"] = np.ones(hidden)
    for layer in range(layers):
        scope = f"model.layers.{layer}"
        readers = {
            "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
        }
        for norm, parts in readers.items():
            gain = weights[f"{scope}.{norm}"]
            for part in parts:
                weights[f"{scope}.{part}"] = weights[f"{scope}.{part}"] * gain @ stream
            weights[f"{scope}.{norm}"] = np.ones(hidden)
        for part in ["self_attn.o_proj", "mlp.down_proj"]:
            weights[f"{scope}.{part}"] = stream.T @ weights[f"{scope}.{part}"]

        value, output = weights[f"{scope}.self_attn.v_proj"], weights[f"{scope}.self_attn.o_proj"]
        size = len(value) // kv_heads
        head = hadamard(size)
        by_head = head.T @ value.reshape(kv_heads, size, hidden)
        weights[f"{scope}.self_attn.v_proj"] = by_head.reshape(value.shape)
        weights[f"{scope}.self_attn.o_proj"] = (output.reshape(hidden, heads, size) @ head).reshape(output.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()

    reader = gguf.GGUFReader(options.model)
    setting = lambda key: reader.fields[f"llama.{key}"].contents()
    layers, heads, kv_heads = (setting(key) for key in ["block_count", "attention.head_count", "attention.head_count_kv"])
    weights = read(reader, heads, kv_heads)
    if not options.plain:
        rotate(weights, layers, heads, kv_heads)

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": setting("embedding_length"), "intermediate_size": setting("feed_forward_length"),
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": len(weights["model.embed_tokens"]), "max_position_embeddings": setting("context_length"),
        "rope_theta": setting("rope.freq_base"), "rms_norm_eps": setting("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": options.plain,
    }
    options.out.mkdir(parents=True)
    tensors = {f"{name}.weight": values.astype(np.float32) for name, values in weights.items()}
    save_file(tensors, options.out / "model.safetensors")
    (options.out / "config.json").write_text(json.dumps(config))
    shutil.copy(options.tokenizer, options.out / "tokenizer.json")


if __name__ == "__main__":
    main()
