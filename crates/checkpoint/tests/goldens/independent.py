"""OpenELM and ChatGLM3 in NumPy, written from the paper, the published settings and the names of the published weights.

transformers has neither; llama.cpp, asked by llama_logits.c, agrees. Both models take `config.json` as a dictionary, the file's tensors by name, and tokens; they
give a row of logits for each token. Nothing is shared with the Rust code: rows of q, k and v are cut out of the fused
weights here, and neighbours are rotated as complex numbers.
"""

import numpy as np


def rms_norm(x, gain, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain


def silu(x):
    return x / (1.0 + np.exp(-x))


def angles(length, dims, base):
    return np.outer(np.arange(length), base ** (-np.arange(0, dims, 2) / dims))


def rotate_halves(x, base):
    """x [tokens, heads, size]: element e with element e + size / 2 (as GPT-NeoX does)."""
    length, _, size = x.shape
    angle = angles(length, size, base)[:, None, :]
    first, second = x[..., : size // 2], x[..., size // 2 :]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                           second * np.cos(angle) + first * np.sin(angle)], -1)


def rotate_neighbours(x, dims, base):
    """x [tokens, heads, size]: the first `dims` elements, neighbours as real and imaginary parts."""
    turned, rest = x[..., :dims], x[..., dims:]
    numbers = turned[..., 0::2] + 1j * turned[..., 1::2]
    numbers = numbers * np.exp(1j * angles(x.shape[0], dims, base))[:, None, :]
    turned = np.stack([numbers.real, numbers.imag], -1).reshape(turned.shape)
    return np.concatenate([turned, rest], -1)


def attention(q, k, v):
    """q [tokens, heads, size], k and v [tokens, kv_heads, size]; each key serves a run of neighbouring heads."""
    length, heads, size = q.shape
    group = heads // k.shape[1]
    out = np.zeros_like(q)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T / np.sqrt(size)
        scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, head // group]
    return out.reshape(length, heads * size)


def openelm(config, tensors, tokens):
    w = {key.removeprefix("transformer."): value.astype(np.float64) for key, value in tensors.items()}
    size, epsilon, base = config["head_dim"], 1e-6, config["rope_freq_constant"]
    x = w["token_embeddings.weight"][tokens]
    for layer in range(config["num_transformer_layers"]):
        at = f"layers.{layer}."
        heads, kv = config["num_query_heads"][layer], config["num_kv_heads"][layer]
        qkv = rms_norm(x, w[at + "attn_norm.weight"], epsilon) @ w[at + "attn.qkv_proj.weight"].T
        q, k, v = np.split(qkv.reshape(len(tokens), -1, size), [heads, heads + kv], axis=1)
        q = rotate_halves(rms_norm(q, w[at + "attn.q_norm.weight"], epsilon), base)
        k = rotate_halves(rms_norm(k, w[at + "attn.k_norm.weight"], epsilon), base)
        x = x + attention(q, k, v) @ w[at + "attn.out_proj.weight"].T
        both = rms_norm(x, w[at + "ffn_norm.weight"], epsilon) @ w[at + "ffn.proj_1.weight"].T
        gate, up = np.split(both, 2, axis=-1)
        x = x + (silu(gate) * up) @ w[at + "ffn.proj_2.weight"].T
    return rms_norm(x, w["norm.weight"], epsilon) @ w["token_embeddings.weight"].T


def chatglm(config, tensors, tokens):
    w = {key.removeprefix("transformer."): value.astype(np.float64) for key, value in tensors.items()}
    size, epsilon = config["kv_channels"], config["layernorm_epsilon"]
    base = 10000.0 * config["rope_ratio"]
    heads, kv = config["num_attention_heads"], config["multi_query_group_num"]
    x = w["embedding.word_embeddings.weight"][tokens]
    for layer in range(config["num_layers"]):
        at = f"encoder.layers.{layer}."
        normed = rms_norm(x, w[at + "input_layernorm.weight"], epsilon)
        qkv = normed @ w[at + "self_attention.query_key_value.weight"].T
        qkv = qkv + w[at + "self_attention.query_key_value.bias"]
        q, k, v = np.split(qkv.reshape(len(tokens), -1, size), [heads, heads + kv], axis=1)
        q, k = rotate_neighbours(q, size // 2, base), rotate_neighbours(k, size // 2, base)
        x = x + attention(q, k, v) @ w[at + "self_attention.dense.weight"].T
        both = rms_norm(x, w[at + "post_attention_layernorm.weight"], epsilon) @ w[at + "mlp.dense_h_to_4h.weight"].T
        gate, up = np.split(both, 2, axis=-1)
        x = x + (silu(gate) * up) @ w[at + "mlp.dense_4h_to_h.weight"].T
    return rms_norm(x, w["encoder.final_layernorm.weight"], epsilon) @ w["output_layer.weight"].T
