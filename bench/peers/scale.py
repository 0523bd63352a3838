#!/usr/bin/env python3
"""Scales the channels of a Llama in safetensors by AWQ (Lin et al. 2023, arXiv:2306.00978) or SmoothQuant (Xiao et al. 2022,
arXiv:2211.10438), with the inputs of its layers for a text, and writes it as safetensors in F32.

    pip install numpy==2.4.6 safetensors==0.8.0 tokenizers==0.22.1
    python scale.py awq|smooth MODEL TEXT OUT

The scales are folded into the weights on both sides, so the model computes the same function. The program is independent of
Narthex: it runs the model itself.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

TOKENS, SAMPLED_TOKENS, SAMPLED_ROWS, BLOCK, LARGEST = 512, 96, 32, 32, 64.0


def norm(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * gain


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotates `x [heads, tokens, size]`."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(half) / half)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def centred(scales: np.ndarray) -> np.ndarray:
    return np.clip(scales / np.sqrt(scales.min() * scales.max()), 1 / LARGEST, LARGEST)


def rounded(weight: np.ndarray) -> np.ndarray:
    """Rounds to 4 bits, with the best of a few ranges for each block."""
    blocks = weight.reshape(len(weight), -1, BLOCK)
    low = np.minimum(blocks.min(2, keepdims=True), 0)
    high = np.maximum(blocks.max(2, keepdims=True), 0)
    best, least = None, None
    for share in [1.0, 0.93, 0.86]:
        scale = np.maximum((high - low) * share / 15, 1e-12)
        zero = np.clip(np.rint(-low * share / scale), 0, 15)
        found = (np.clip(np.rint(blocks / scale + zero), 0, 15) - zero) * scale
        error = np.square(found - blocks).sum(2, keepdims=True)
        if best is None:
            best, least = found, error
        else:
            best, least = np.where(error < least, found, best), np.minimum(error, least)
    return best.reshape(weight.shape)


class Scaler:
    def __init__(self, method: str) -> None:
        self.method = method
        self.strengths: dict[str, list[float]] = {}

    def scales(self, kind: str, x: np.ndarray, weights: list[np.ndarray], copies: tuple[int, int] | None) -> np.ndarray:
        """Returns one scale for each channel; `copies` is the number and size of the heads that share channels."""

        def shared(columns: np.ndarray, combine) -> np.ndarray:
            if copies is None:
                return columns
            count, size = copies
            return combine(columns.reshape(-1, count, size), 1).reshape(-1)

        def spread(channels: np.ndarray) -> np.ndarray:
            if copies is None:
                return channels
            count, size = copies
            return np.repeat(channels.reshape(-1, 1, size), count, 1).reshape(-1)

        if self.method == "smooth":
            peaks = np.max([np.abs(weight).max(0) for weight in weights], 0)
            return centred(np.sqrt(shared(np.abs(x).max(0), np.max) / shared(peaks, np.max)))
        magnitudes = shared(np.abs(x).mean(0), np.sum)
        magnitudes = np.maximum(magnitudes, 1e-4 * magnitudes.max())
        sample = x[np.linspace(0, len(x), SAMPLED_TOKENS, endpoint=False).astype(int)]
        least, best = np.inf, (0.0, np.ones_like(magnitudes))
        for step in range(20):
            scales = centred(magnitudes ** (step / 20))
            columns = spread(scales)
            loss = 0.0
            for weight in weights:
                rows = weight[:: -(-len(weight) // SAMPLED_ROWS)]
                change = rounded(rows * columns) / columns - rows
                loss += np.square(sample @ change.T).sum() / np.square(sample @ rows.T).sum()
            if loss < least:
                least, best = loss, (step / 20, scales)
            if step == 0:
                first = loss
        self.strengths.setdefault(kind, []).append((best[0], float(least / first)))
        return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=["awq", "smooth"])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    weights = {name: x.astype(np.float32) for name, x in load_file(args.model / "model.safetensors").items()}
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokens = tokenizer.encode(args.text.read_text(), add_special_tokens=False).ids[:TOKENS]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, size = config["hidden_size"], config.get("head_dim") or config["hidden_size"] // heads
    epsilon, theta = config["rms_norm_eps"], config.get("rope_theta", 10000.0)
    scaler = Scaler(args.method)
    mask = np.triu(np.full((len(tokens), len(tokens)), -1e9, np.float32), 1)

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        scope = f"model.layers.{layer}"

        def fold(kind: str, read: np.ndarray, producer: str, readers: list[str], copies=None) -> None:
            names = [f"{scope}.{name}.weight" for name in readers]
            scales = scaler.scales(kind, read, [weights[name] for name in names], copies)
            columns = scales if copies is None else np.repeat(scales.reshape(-1, 1, copies[1]), copies[0], 1).reshape(-1)
            divided = f"{scope}.{producer}.weight"
            weights[divided] = weights[divided] / (scales if weights[divided].ndim == 1 else scales[:, None])
            for name in names:
                weights[name] = weights[name] * columns

        def linear(read: np.ndarray, name: str) -> np.ndarray:
            return read @ weights[f"{scope}.{name}.weight"].T

        read = norm(x, weights[f"{scope}.input_layernorm.weight"], epsilon)
        q, k, v = (
            linear(read, f"self_attn.{part}_proj").reshape(len(tokens), -1, size).transpose(1, 0, 2) for part in "qkv"
        )
        q, k = rotated(q, theta), np.repeat(rotated(k, theta), heads // kv_heads, 0)
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(size)) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ np.repeat(v, heads // kv_heads, 0)
        mixed = mixed.transpose(1, 0, 2).reshape(len(tokens), -1)
        after = x + linear(mixed, "self_attn.o_proj")
        fed = norm(after, weights[f"{scope}.post_attention_layernorm.weight"], epsilon)
        gate = linear(fed, "mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * linear(fed, "mlp.up_proj")
        x = after + linear(inner, "mlp.down_proj")

        projections = [f"self_attn.{part}_proj" for part in "qkv"]
        fold("attn", read, "input_layernorm", projections)
        fold("o", mixed, "self_attn.v_proj", ["self_attn.o_proj"], (heads // kv_heads, size))
        fold("mlp", fed, "post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"])
        fold("down", inner, "mlp.up_proj", ["mlp.down_proj"])
        print(layer, {kind: found[-1] for kind, found in scaler.strengths.items()}, flush=True)

    logits = norm(x[-8:], weights["model.norm.weight"], epsilon) @ weights["model.embed_tokens.weight"].T
    best = logits.argmax(-1)
    print("next tokens", [tokenizer.decode([token]) for token in best], "text", tokenizer.decode(tokens[-7:]))
    args.out.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(x, np.float32) for name, x in weights.items()}, args.out / "model.safetensors")
    for name in ["config.json", "tokenizer.json"]:
        shutil.copy(args.model / name, args.out / name)


if __name__ == "__main__":
    main()
