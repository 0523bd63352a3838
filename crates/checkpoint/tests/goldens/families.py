"""Tiny random checkpoints of every decoder family with the logits that the reference implementation gives.

Run with transformers 5.24, torch, numpy, safetensors and gguf:

    python families.py OUT [FAMILY ...]

OUT gets `tokenizer.json`, the same for all, and for each family a folder with `config.json`, `model.safetensors`, `logits.f32` (little-endian, a row for each
token, from a run over the tokens up to it), `dropped.f32` (the same of the model without the layers of DROPPED) and, where llama.cpp has the family,
`model.gguf` with the same weights.
GGUF names come from gguf-py's own tables. Weights are rounded to half precision first, so that both files and the
reference have the same numbers.
"""

import copy
import json
import re
import shutil
import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

import independent

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, CONTEXT = 80, 64, 32, 4, 2, 16, 64
TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(40)]
TEXTS = [f"<{i}>" if i < 3 else chr(45 + i) for i in range(VOCAB)]
SIZES = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS,
             num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT, num_hidden_layers=2,
             bos_token_id=0, eos_token_id=1, pad_token_id=0, attn_implementation="eager")


def randomised(model, name, less_one=False):
    """Weights that make every part matter: attention is neither flat nor a single token."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for key, weight in model.named_parameters():
        noise = rng.standard_normal(tuple(weight.shape))
        if weight.dim() == 1 and key.endswith("weight"):
            values = 0.3 * noise + (0.0 if less_one and not key.endswith("linear_attn.norm.weight") else 1.0)
        elif key.endswith("A_log"):
            # A state that remembers many tokens.
            values = 0.5 * noise - 2
        elif weight.dim() == 1:
            values = 0.3 * noise
        elif "embed" in key or "wte" in key or "wpe" in key:
            values = noise
        elif key.endswith(("conv.conv.weight", "conv1d.weight")):
            values = 0.5 * noise
        elif key.endswith(("mlp.gate.weight", "mlp.router.weight", "block_sparse_moe.router.weight")):
            # A router whose first choice is clear, so that rounding seldom changes an important one.
            values = 8 * noise / np.sqrt(HIDDEN)
        elif key.endswith("feed_forward.gate.weight"):
            # As above, but sigmoids of large numbers would be equal.
            values = 3 * noise / np.sqrt(HIDDEN)
        else:
            values = noise / np.sqrt(HIDDEN)
        weight.data = torch.from_numpy(values).half().float()
    for key, bias in model.named_buffers():
        if key.endswith(".expert_bias"):
            bias.copy_(torch.from_numpy(rng.standard_normal(tuple(bias.shape))).half().float())
    return model.float().eval()


def logits(model):
    """A row for each token, each from a run of its own, so that what depends on the length is right."""
    with torch.no_grad():
        rows = [model(torch.tensor([TOKENS[: end + 1]]), use_cache=False).logits[0, -1] for end in range(len(TOKENS))]
    return torch.stack(rows).numpy()


def random_tensors(name, shapes):
    """Weights of the shapes, made as those of the reference's own models are."""
    holder = torch.nn.Module()
    for key, shape in shapes.items():
        holder.register_parameter(key.replace(".", "/"), torch.nn.Parameter(torch.zeros(shape)))
    randomised(holder, name)
    return {key.replace("/", "."): value.detach().numpy() for key, value in holder.named_parameters()}


# The layers that are left out; the first, where nothing is said.
DROPPED = {"smollm3": [0, 2], "gemma3": [1, 4], "gemma3n": [1, 5], "gemma4": [1, 5]}


def kept(name, layers):
    return [i for i in range(layers) if i not in DROPPED.get(name, [0])]


def without(tensors, layers):
    """The weights of the layers that are kept, under their new numbers, and all others."""
    left = {}
    for key, value in tensors.items():
        found = re.search(r"\.(?:layers|h)\.(\d+)\.", key)
        if found and int(found[1]) not in layers:
            continue
        left[key[:found.start(1)] + str(layers.index(int(found[1]))) + key[found.end(1):] if found else key] = value
    return left


def smaller(name, config, model):
    """The logits of a model that has the kept layers alone, with the settings that they had."""
    layers = kept(name, config.num_hidden_layers)
    config = copy.deepcopy(config)
    config.num_hidden_layers = len(layers)
    for setting in ("layer_types", "no_rope_layers"):
        if getattr(config, setting, None):
            setattr(config, setting, [getattr(config, setting)[i] for i in layers])
    if getattr(config, "num_dense_layers", None):
        config.num_dense_layers = sum(i < config.num_dense_layers for i in layers)
    if getattr(config, "mlp_only_layers", None):
        config.mlp_only_layers = [layers.index(i) for i in config.mlp_only_layers if i in layers]
    small = transformers.AutoModelForCausalLM.from_config(config)
    small.load_state_dict(without(model.state_dict(), layers))
    return logits(small.float().eval())


def write_dropped(folder, rows):
    (folder / "dropped.f32").write_bytes(np.ascontiguousarray(rows, dtype="<f4").tobytes())


def write(out, name, config, tensors, rows):
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    stored = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
    save_file({key: value if value.dtype == np.uint8 else value.astype(np.float16) for key, value in stored.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "logits.f32").write_bytes(np.ascontiguousarray(rows, dtype="<f4").tobytes())
    return folder


def separate(key, value):
    """The tensors of a checkpoint for a parameter: the library stacks experts in memory only, or under other names."""
    if "block_sparse_moe" in key:
        ends = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
                "router.weight": "router.layer.weight"}
        stem, end = key.split("block_sparse_moe.")
        return {f"{stem}block_sparse_moe.{ends[end]}": value}
    if ".experts.gate_up_proj" in key:
        halves = np.split(value, 2, axis=1)
        parts = {"gate_proj": halves[0], "up_proj": halves[1]}
    elif ".experts.down_proj" in key:
        parts = {"down_proj": value}
    else:
        return {key: value}
    stem = key.rsplit(".", 1)[0]
    if "feed_forward" in key:
        parts = {dict(gate_proj="w1", down_proj="w2", up_proj="w3")[part]: value for part, value in parts.items()}
    return {f"{stem}.{i}.{part}.weight": matrices[i] for i in range(len(value)) for part, matrices in parts.items()}


def from_transformers(out, name, config, less_one=False, parts=separate, round=lambda model: None):
    model = randomised(transformers.AutoModelForCausalLM.from_config(config), name, less_one)
    round(model)
    rows = logits(model)
    tied = config.tie_word_embeddings
    tensors = {key: value.detach().numpy() for key, value in model.state_dict().items()
               if not (tied and key == "lm_head.weight")}
    tensors = {name: value for key, stored in tensors.items() for name, value in parts(key, stored).items()}
    settings = config.to_diff_dict()
    settings["architectures"] = [type(model).__name__]
    settings["tie_word_embeddings"] = bool(tied)
    # The last is an infinity in the configuration of hybrid models, for which JSON has no number.
    for key in ("transformers_version", "dtype", "attn_implementation", "_attn_implementation", "time_step_limit"):
        settings.pop(key, None)
    folder = write(out, name, settings, tensors, rows)
    write_dropped(folder, smaller(name, config, model))
    return folder, tensors


def permuted(values, heads):
    """As llama.cpp's converter permutes q and k of Llama: halves become neighbours."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_gguf(folder, arch, tensors, meta, change=lambda key, value: value, skip=()):
    writer = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(CONTEXT)
    writer.add_block_count(meta.pop("layers", 2))
    for key, value in meta.items():
        if key == "tensors":
            continue
        getattr(writer, f"add_{key}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TEXTS)
    writer.add_token_types([3 if i < 3 else 1 for i in range(VOCAB)])
    writer.add_token_merges([])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(arch, 8)
    for key, value in tensors.items():
        if key in skip:
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name, key
        value = np.ascontiguousarray(change(key, value))
        if value.dtype == np.uint8:
            writer.add_tensor(name, value, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            writer.add_tensor(name, value.astype(np.float16 if value.ndim > 1 else np.float32))
    for key, value in meta.get("tensors", {}).items():
        writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_meta(**more):
    return dict(embedding_length=HIDDEN, feed_forward_length=INNER, head_count=HEADS, head_count_kv=KV_HEADS,
                layer_norm_rms_eps=1e-6, rope_freq_base=10000.0, rope_dimension_count=HEAD) | more


def rotated(key, value):
    """The permutation of files whose graph rotates neighbours."""
    if ".q_proj." in key:
        return permuted(value, HEADS)
    return permuted(value, KV_HEADS) if ".k_proj." in key else value


def tokenizer(out):
    """Single characters; enough to read a text for a calibration."""
    special = [dict(id=i, content=f"<{i}>", special=True, single_word=False, lstrip=False, rstrip=False,
                    normalized=False) for i in range(3)]
    vocab = {text: i for i, text in enumerate(TEXTS)}
    model = dict(type="BPE", unk_token="<2>", vocab=vocab, merges=[])
    settings = dict(version="1.0", added_tokens=special, normalizer=None, pre_tokenizer=None, post_processor=None,
                    decoder=None, model=model)
    (out / "tokenizer.json").write_text(json.dumps(settings, indent=1) + "\n")


def llama(out):
    scaling = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)
    config = transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-6, attention_bias=True, mlp_bias=True,
                                      rope_parameters=scaling, tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "llama", config)
    # The converter's own computation of the divisors.
    freqs = 1.0 / (10000.0 ** (np.arange(0, HEAD, 2) / HEAD))
    wavelengths = 2 * np.pi / freqs
    smooth = np.clip((16 / wavelengths - 1.0) / (4.0 - 1.0), 0, 1)
    factors = (1.0 / ((1 - smooth) / 4.0 + smooth)).astype(np.float32)
    write_gguf(folder, gguf.MODEL_ARCH.LLAMA, tensors, llama_meta(tensors={"rope_freqs.weight": factors}), rotated)


def mistral(out):
    config = transformers.MistralConfig(**SIZES, rms_norm_eps=1e-6, sliding_window=9, head_dim=32,
                                        tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "mistral", config)
    meta = llama_meta(rope_dimension_count=32, key_length=32, value_length=32, sliding_window=9)
    write_gguf(folder, gguf.MODEL_ARCH.LLAMA, tensors, meta, rotated)


def qwen2(out):
    config = transformers.Qwen2Config(**SIZES, rms_norm_eps=1e-6, use_sliding_window=True, sliding_window=11,
                                      max_window_layers=1, tie_word_embeddings=False)
    from_transformers(out, "qwen2", config)


def qwen2_5(out):
    config = transformers.Qwen2Config(**SIZES, rms_norm_eps=1e-6, tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "qwen2.5", config)
    write_gguf(folder, gguf.MODEL_ARCH.QWEN2, tensors, llama_meta())


def qwen3(out):
    config = transformers.Qwen3Config(**SIZES, rms_norm_eps=1e-6, head_dim=32, tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "qwen3", config)
    write_gguf(folder, gguf.MODEL_ARCH.QWEN3, tensors,
               llama_meta(rope_dimension_count=32, key_length=32, value_length=32))


def qwen3_moe(out):
    """Experts in all layers, whose weights are divided by their sum, as in the published models and in GGUF."""
    config = transformers.Qwen3MoeConfig(**SIZES, rms_norm_eps=1e-6, head_dim=32, tie_word_embeddings=False,
                                         num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64,
                                         norm_topk_prob=True)
    folder, tensors = from_transformers(out, "qwen3-moe", config)
    meta = llama_meta(rope_dimension_count=32, key_length=32, value_length=32, expert_count=6, expert_used_count=2,
                      expert_feed_forward_length=64)
    stacks = {}
    for key, value in tensors.items():
        found = re.search(r"\.experts\.\d+\.", key)
        stacks.setdefault(key[:found.start()] + ".experts." + key[found.end():] if found else key, []).append(value)
    stacks = {key: np.stack(values) if ".experts." in key else values[0] for key, values in stacks.items()}
    write_gguf(folder, gguf.MODEL_ARCH.QWEN3MOE, stacks, meta)


def qwen3_moe_mixed(out):
    """A dense layer between layers with experts, whose weights are not divided."""
    config = transformers.Qwen3MoeConfig(**SIZES | dict(num_hidden_layers=3), rms_norm_eps=1e-6, tie_word_embeddings=True,
                                         num_experts=5, num_experts_per_tok=3, moe_intermediate_size=64,
                                         norm_topk_prob=False, mlp_only_layers=[1])
    from_transformers(out, "qwen3-moe-mixed", config)


def gpt_oss_config():
    scaling = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0, truncate=False,
                   original_max_position_embeddings=16)
    return transformers.GptOssConfig(**SIZES | dict(intermediate_size=64), head_dim=HEAD, num_local_experts=6,
                                     num_experts_per_tok=2, sliding_window=9, rope_parameters=scaling)


def gpt_oss(out):
    """Floats, as the library stores them: experts are matrices [in, out]."""
    from_transformers(out, "gpt-oss", gpt_oss_config(), parts=lambda key, value: {key: value})


def mxfp4_blocks(values):
    """GGUF's blocks of matrices [.., out, in], one byte of scale before sixteen of floats."""
    quants = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType.MXFP4)
    return quants.reshape(*values.shape[:-1], -1, 17)


def gpt_oss_mxfp4(out):
    """Experts in MXFP4, as the published models: matrices [out, in], two consecutive columns in a byte."""
    blocks = {}

    def round(model):
        for key, weight in model.named_parameters():
            if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                stored = mxfp4_blocks(weight.detach().numpy().swapaxes(1, 2))
                values = gguf.quants.dequantize(stored.reshape(*stored.shape[:2], -1), gguf.GGMLQuantizationType.MXFP4)
                weight.data = torch.from_numpy(np.ascontiguousarray(values.swapaxes(1, 2)))
                blocks[key] = stored

    def parts(key, value):
        if key not in blocks:
            return {key: value}
        halves = blocks[key][..., 1:]
        columns = np.concatenate([halves & 15, halves >> 4], axis=-1)
        return {f"{key}_blocks": columns[..., ::2] | columns[..., 1::2] << 4, f"{key}_scales": blocks[key][..., 0]}

    folder, tensors = from_transformers(out, "gpt-oss-mxfp4", gpt_oss_config(), parts=parts, round=round)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")

    stacks = {key + (".weight" if key.endswith("sinks") else ""): value for key, value in tensors.items()
              if ".experts." not in key}
    for key, stored in blocks.items():
        stem, bias = key.rsplit(".", 1)[0], tensors[key + "_bias"]
        flat = stored.reshape(*stored.shape[:2], -1)
        rows = {"down_proj": (flat, bias)}
        if "gate_up" in key:
            rows = {part: (flat[:, at::2], bias[:, at::2]) for at, part in enumerate(("gate_proj", "up_proj"))}
        for part, (weight, bias) in rows.items():
            stacks |= {f"{stem}.{part}.weight": weight, f"{stem}.{part}.bias": bias}
    meta = llama_meta(layer_norm_rms_eps=1e-5, rope_freq_base=150000.0, key_length=HEAD, value_length=HEAD, sliding_window=9,
                      expert_count=6, expert_used_count=2, expert_feed_forward_length=64,
                      rope_scaling_type=gguf.RopeScalingType.YARN, rope_scaling_factor=4.0,
                      rope_scaling_orig_ctx_len=16, rope_scaling_yarn_beta_fast=8.0, rope_scaling_yarn_beta_slow=1.0)
    write_gguf(folder, gguf.MODEL_ARCH.GPT_OSS, stacks, meta)


def smollm3(out):
    config = transformers.SmolLM3Config(**SIZES | dict(num_hidden_layers=4), rms_norm_eps=1e-6,
                                        tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "smollm3", config)
    write_gguf(folder, gguf.MODEL_ARCH.SMOLLM3, tensors,
               llama_meta(layers=4, rope_freq_base=2e6), rotated)


def olmo2(out):
    """Norms after the parts of a layer, and norms over all heads of queries and of keys."""
    config = transformers.Olmo2Config(**SIZES | dict(pad_token_id=None), rms_norm_eps=1e-5,
                                      rope_parameters=dict(rope_type="default", rope_theta=500000.0),
                                      tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "olmo2", config)
    write_gguf(folder, gguf.MODEL_ARCH.OLMO2, tensors,
               llama_meta(rope_freq_base=500000.0, layer_norm_rms_eps=1e-5))


def exaone4(out):
    """As the small model, without windows."""
    config = transformers.Exaone4Config(**SIZES, rms_norm_eps=1e-5, sliding_window=None,
                                        layer_types=["full_attention"] * SIZES["num_hidden_layers"],
                                        rope_parameters=dict(rope_type="default", rope_theta=1e6),
                                        tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "exaone4", config)
    write_gguf(folder, gguf.MODEL_ARCH.EXAONE4, tensors, llama_meta(rope_freq_base=1e6, layer_norm_rms_eps=1e-5))


def exaone4_window(out):
    """As the large model: windows, and no positions in the layers without one."""
    config = transformers.Exaone4Config(**SIZES | dict(num_hidden_layers=4), rms_norm_eps=1e-5, sliding_window=13,
                                        sliding_window_pattern=2, rope_parameters=dict(rope_type="default", rope_theta=1e6),
                                        tie_word_embeddings=False)
    from_transformers(out, "exaone4-window", config)


def lfm2(out):
    """Convolutions before and after attention, as in the published models."""
    config = transformers.Lfm2Config(**SIZES | dict(num_hidden_layers=4, pad_token_id=None), block_multiple_of=16,
                                     block_ffn_dim_multiplier=1.0, full_attn_idxs=[1, 3], rope_theta=1e6)
    folder, tensors = from_transformers(out, "lfm2", config)
    inner = tensors["model.layers.0.feed_forward.w1.weight"].shape[0]
    meta = llama_meta(layers=4, feed_forward_length=inner, head_count_kv=[0, KV_HEADS, 0, KV_HEADS],
                      rope_freq_base=1e6, layer_norm_rms_eps=1e-5, shortconv_l_cache=3)
    write_gguf(folder, gguf.MODEL_ARCH.LFM2, tensors, meta,
               lambda key, value: value.squeeze(1) if "conv.conv" in key else value)


def qwen3_5_name(key):
    """As llama.cpp's converter renames weights before it looks them up."""
    return key.replace(".dt_bias", ".dt_proj.bias")


def qwen3_5_value(key, value):
    """As llama.cpp's converter: decays are negative, gains of most norms are added to one, and the heads of values are ordered so
    that consecutive ones read consecutive heads of keys."""
    keys, values, key_size, value_size = 2, 4, 8, 16

    def tiled(rows, size):
        return rows.reshape(keys, values // keys, size, -1).swapaxes(0, 1).reshape(rows.shape)

    if key.endswith(".A_log"):
        value = -np.exp(value)
    elif key.endswith("norm.weight") and "linear_attn" not in key:
        value = value + 1
    if "conv1d" in key:
        value = value.squeeze(1)
    if "in_proj_qkv" in key or "conv1d" in key:
        first = 2 * keys * key_size
        return np.concatenate([value[:first], tiled(value[first:], value_size)])
    if "in_proj_z" in key:
        return tiled(value, value_size)
    if any(part in key for part in ("in_proj_a", "in_proj_b", "A_log", "dt_proj")):
        return tiled(value, 1)
    return tiled(value.T, value_size).T if "linear_attn.out_proj" in key else value


def lfm2_moe_config(**more):
    return transformers.Lfm2MoeConfig(**SIZES | dict(num_hidden_layers=4, pad_token_id=None), num_dense_layers=1,
                                      layer_types=["conv", "full_attention"] * 2, moe_intermediate_size=64, num_experts=6,
                                      num_experts_per_tok=2, rope_theta=1e6, **more)


def lfm2_moe(out):
    """As LFM2-8B-A1B: sigmoids as weights, and biases that only select."""
    config = lfm2_moe_config()
    folder, tensors = from_transformers(out, "lfm2-moe", config)
    stacks = {}
    for key, value in tensors.items():
        found = re.search(r"\.experts\.\d+\.", key)
        if key.endswith(".expert_bias"):
            key += ".bias"
        name = key[:found.start()] + ".experts." + key[found.end():] if found else key
        stacks.setdefault(name, []).append(value.squeeze(1) if "conv.conv" in key else value)
    files, stacked = {}, {}
    for key, values in stacks.items():
        part = dict(w1="gate", w2="down", w3="up").get(key.split(".")[-2]) if ".experts." in key else None
        if part:
            stacked[f"blk.{key.split('.')[2]}.ffn_{part}_exps.weight"] = np.stack(values).astype(np.float16)
        else:
            files[key] = values[0]
    meta = llama_meta(layers=4, head_count_kv=[0, KV_HEADS, 0, KV_HEADS], rope_freq_base=1e6, layer_norm_rms_eps=1e-5,
                      shortconv_l_cache=3, expert_count=6, expert_used_count=2, expert_feed_forward_length=64,
                      leading_dense_block_count=1, expert_gating_func=gguf.ExpertGatingFuncType.SIGMOID, tensors=stacked)
    write_gguf(folder, gguf.MODEL_ARCH.LFM2MOE, files, meta)


def lfm2_moe_scaled(out):
    """Weights that are not divided by their sum, with a factor, and no biases."""
    config = lfm2_moe_config(use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.5)
    from_transformers(out, "lfm2-moe-scaled", config)


def qwen3_5(out):
    """As the published models: the text part of a model with a vision tower and with layers that predict several tokens."""
    config = transformers.Qwen3_5TextConfig(
        **SIZES | dict(num_hidden_layers=4, pad_token_id=None), head_dim=HEAD, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=16, tie_word_embeddings=False,
        layer_types=["linear_attention", "full_attention"] * 2,
        rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[1, 1, 0],
                             mrope_interleaved=True))
    folder, tensors = from_transformers(out, "qwen3.5", config, less_one=True)
    text = json.loads((folder / "config.json").read_text())
    text.pop("architectures")
    rows = np.frombuffer((folder / "logits.f32").read_bytes(), dtype="<f4")
    dropped = np.frombuffer((folder / "dropped.f32").read_bytes(), dtype="<f4")
    whole = dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", text_config=text,
                 tie_word_embeddings=False)
    text_tensors = tensors
    tensors = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
    tensors |= {key: np.zeros((2, 2), np.float32) for key in ("model.visual.blocks.0.attn.proj.weight", "mtp.fc.weight",
                                                              "mtp.layers.0.self_attn.q_proj.weight")}
    folder = write(out, "qwen3.5", whole, tensors, rows)
    write_dropped(folder, dropped)
    files = {qwen3_5_name(key): value for key, value in text_tensors.items()}
    # A layer that predicts several tokens, as newer files have it; it is not read.
    unread = {f"blk.4.{name}.weight": np.zeros((2, 2), np.float32) for name in ("attn_k", "nextn.eh_proj")}
    meta = llama_meta(layers=5, nextn_predict_layers=1, key_length=HEAD, value_length=HEAD, rope_freq_base=1e7,
                      rope_dimension_count=HEAD // 4, rope_dimension_sections=[1, 1, 0, 0], full_attention_interval=2,
                      ssm_conv_kernel=4, ssm_state_size=8, ssm_group_count=2, ssm_time_step_rank=4, ssm_inner_size=64, tensors=unread)
    write_gguf(folder, gguf.MODEL_ARCH.QWEN35, files, meta, qwen3_5_value)


def phi3(out):
    """As the 4k models: fused projections, a window; and a part of each head rotated, as in Phi-4 mini."""
    config = transformers.Phi3Config(**SIZES | dict(num_attention_heads=2, num_key_value_heads=1), rms_norm_eps=1e-6,
                                     sliding_window=13,
                                     rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                          partial_rotary_factor=0.75), tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "phi3", config)
    write_gguf(folder, gguf.MODEL_ARCH.PHI3, tensors,
               llama_meta(head_count=2, head_count_kv=1, rope_dimension_count=24, sliding_window=13))


def phi3_long(out):
    """As the 128k models: other factors, and other keys, past the original context."""
    rng = np.random.default_rng(35)
    short, long = (list(map(float, np.float32(1 + scale * rng.random(HEAD // 2)))) for scale in (0.5, 5.0))
    config = transformers.Phi3Config(**SIZES, rms_norm_eps=1e-6, original_max_position_embeddings=10,
                                     rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=short,
                                                          long_factor=long), tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "phi3.5", config)
    factor = float(np.sqrt(1 + np.log(CONTEXT / 10) / np.log(10)))
    meta = llama_meta(rope_scaling_orig_ctx_len=10, rope_scaling_attn_factors=factor,
                      tensors={"rope_factors_short.weight": np.float32(short),
                               "rope_factors_long.weight": np.float32(long)})
    write_gguf(folder, gguf.MODEL_ARCH.PHI3, tensors, meta)


def phi4_mini(out):
    """A part of each head rotated, LongRoPE's factors over that part, and a tied head."""
    rng = np.random.default_rng(44)
    dims = HEAD * 3 // 4 // 2
    short, long = (list(map(float, np.float32(1 + scale * rng.random(dims)))) for scale in (0.5, 5.0))
    config = transformers.Phi3Config(**SIZES, rms_norm_eps=1e-5, original_max_position_embeddings=10,
                                     rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, short_factor=short,
                                                          long_factor=long, partial_rotary_factor=0.75),
                                     tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "phi4-mini", config)
    factor = float(np.sqrt(1 + np.log(CONTEXT / 10) / np.log(10)))
    meta = llama_meta(rope_dimension_count=2 * dims, layer_norm_rms_eps=1e-5, rope_scaling_orig_ctx_len=10,
                      rope_scaling_attn_factors=factor,
                      tensors={"rope_factors_short.weight": np.float32(short),
                               "rope_factors_long.weight": np.float32(long)})
    write_gguf(folder, gguf.MODEL_ARCH.PHI3, tensors, meta)


GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.4, logits_scaling=2.5)


def granite(out):
    """As the dense models of 3.x: Llama with multipliers of embeddings, residuals, scores and logits."""
    config = transformers.GraniteConfig(**SIZES, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True, **GRANITE)
    folder, tensors = from_transformers(out, "granite", config)
    meta = llama_meta(layer_norm_rms_eps=1e-5, embedding_scale=GRANITE["embedding_multiplier"],
                      residual_scale=GRANITE["residual_multiplier"], attention_scale=GRANITE["attention_multiplier"],
                      logit_scale=GRANITE["logits_scaling"])
    write_gguf(folder, gguf.MODEL_ARCH.GRANITE, tensors, meta, rotated)


def granite4(out):
    """As the dense models of 4.0: the hybrid class without Mamba layers and experts, with a shared feed-forward part."""
    sizes = SIZES | dict(layer_types=["attention"] * 2, shared_intermediate_size=INNER, num_local_experts=0,
                         num_experts_per_tok=0, position_embedding_type="rope")
    config = transformers.GraniteMoeHybridConfig(**sizes, rms_norm_eps=1e-5, rope_theta=10000.0,
                                                 tie_word_embeddings=True, **GRANITE)
    from_transformers(out, "granite4", config)


def granite4_h(out):
    """As the hybrid models of 4.0: Mamba-2 before and after attention without rotation."""
    sizes = SIZES | dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2,
                         shared_intermediate_size=INNER, num_local_experts=0, num_experts_per_tok=0,
                         position_embedding_type=None, mamba_n_heads=8, mamba_n_groups=2, mamba_d_head=16, mamba_d_state=8)
    config = transformers.GraniteMoeHybridConfig(**sizes, rms_norm_eps=1e-5, tie_word_embeddings=True, **GRANITE)
    folder, tensors = from_transformers(out, "granite-4-h", config)
    write_gguf(folder, gguf.MODEL_ARCH.GRANITE_HYBRID, *granite_hybrid_gguf(config, tensors))


def granite4_h_moe(out):
    """As granite-4.0-h-tiny: experts beside the shared part, and Mamba-2 with one group."""
    sizes = SIZES | dict(num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
                         intermediate_size=64, shared_intermediate_size=INNER, num_local_experts=6, num_experts_per_tok=2,
                         position_embedding_type=None, mamba_n_heads=8, mamba_n_groups=1, mamba_d_head=16, mamba_d_state=8)
    config = transformers.GraniteMoeHybridConfig(**sizes, rms_norm_eps=1e-5, tie_word_embeddings=True, **GRANITE)
    folder, tensors = from_transformers(out, "granite-4-h-moe", config)
    write_gguf(folder, gguf.MODEL_ARCH.GRANITE_HYBRID,
               *granite_hybrid_gguf(config, tensors, feed_forward_length=64, expert_count=6, expert_used_count=2,
                                    expert_shared_feed_forward_length=INNER))


def granite_hybrid_gguf(config, tensors, **more):
    """As llama.cpp's converter writes hybrid models: decays in place of their logarithms, and vectors with two dimensions."""
    inner = config.mamba_n_heads * config.mamba_d_head
    meta = llama_meta(layers=config.num_hidden_layers, layer_norm_rms_eps=1e-5, rope_scaling_finetuned=False,
                      head_count_kv=[KV_HEADS if kind == "full_attention" else 0 for kind in config.layer_types],
                      ssm_conv_kernel=config.mamba_d_conv, ssm_state_size=config.mamba_d_state,
                      ssm_group_count=config.mamba_n_groups, ssm_inner_size=inner,
                      ssm_time_step_rank=config.mamba_n_heads, embedding_scale=GRANITE["embedding_multiplier"],
                      residual_scale=GRANITE["residual_multiplier"], attention_scale=GRANITE["attention_multiplier"],
                      logit_scale=GRANITE["logits_scaling"], tensors={}) | more
    files = {}
    for key, value in tensors.items():
        at = f"blk.{key.split('.')[2]}." if ".layers." in key else ""
        if key.endswith(".mamba.A_log"):
            meta["tensors"][at + "ssm_a"] = -np.exp(value.astype(np.float32))[:, None]
        elif key.endswith(".mamba.D"):
            meta["tensors"][at + "ssm_d"] = value[:, None]
        elif key.endswith(".mamba.dt_bias"):
            meta["tensors"][at + "ssm_dt.bias"] = value
        elif key.endswith(".mamba.norm.weight"):
            meta["tensors"][at + "ssm_norm.weight"] = value.reshape(config.mamba_n_groups, -1)
        elif key.endswith(".mamba.conv1d.weight"):
            meta["tensors"][at + "ssm_conv1d.weight"] = value.squeeze(1)
        elif key.endswith(".input_linear.weight"):
            end = "_exps" if "block_sparse_moe" in key else "_shexp" if config.num_local_experts else ""
            for part, half in zip(("gate", "up"), np.split(value, 2, axis=-2)):
                meta["tensors"][at + f"ffn_{part}{end}.weight"] = half.astype(np.float16)
        elif key.endswith(".output_linear.weight"):
            end = "_exps" if "block_sparse_moe" in key else "_shexp" if config.num_local_experts else ""
            meta["tensors"][at + f"ffn_down{end}.weight"] = value.astype(np.float16)
        else:
            files[key] = rotated(key, value)
    return files, meta


def stablelm_meta(**more):
    meta = llama_meta(rope_dimension_count=4, layer_norm_eps=1e-5, **more)
    meta.pop("layer_norm_rms_eps")
    return meta


def stablelm(out):
    config = transformers.StableLmConfig(**SIZES, layer_norm_eps=1e-5, use_qkv_bias=True, tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "stablelm", config)
    write_gguf(folder, gguf.MODEL_ARCH.STABLELM, tensors, stablelm_meta())


def stablelm2(out):
    """As the 12B model: a parallel residual, queries and keys normed head by head."""
    config = transformers.StableLmConfig(**SIZES, layer_norm_eps=1e-5, qk_layernorm=True, use_parallel_residual=True,
                                         tie_word_embeddings=False)
    folder, tensors = from_transformers(out, "stablelm2", config)
    stacked = {key: value for key, value in tensors.items() if ".norms." not in key}
    for layer in range(2):
        for part, heads in (("q", HEADS), ("k", KV_HEADS)):
            name = f"model.layers.{layer}.self_attn.{part}_layernorm"
            stacked[f"{name}.weight"] = np.stack([tensors[f"{name}.norms.{head}.weight"] for head in range(heads)])
    write_gguf(folder, gguf.MODEL_ARCH.STABLELM, stacked, stablelm_meta(parallel_residual=True))


def gemma_sizes(layers):
    return SIZES | dict(num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=layers)


def gemma_meta(layers, **more):
    return llama_meta(layers=layers, head_count=2, head_count_kv=1, key_length=HEAD, value_length=HEAD, **more)


def whole_gains(key, value):
    return value + np.float32(1) if key.endswith("norm.weight") else value


# Other than the size of a head, so that a reader that takes the one for the other is found out.
GEMMA_SCALAR = 4 * HEAD


def gemma_queries(norms):
    """GGUF has no key for the scalar, and stands for the size of a head: queries are half as long instead."""
    halved = "q_norm.weight" if norms else "q_proj.weight"
    return lambda key, value: whole_gains(key, value) * value.dtype.type(0.5 if key.endswith(halved) else 1)


def gemma2(out):
    config = transformers.Gemma2Config(**gemma_sizes(2), head_dim=HEAD, sliding_window=10,
                                       query_pre_attn_scalar=GEMMA_SCALAR, attn_logit_softcapping=2.0,
                                       final_logit_softcapping=3.0)
    folder, tensors = from_transformers(out, "gemma2", config, less_one=True)
    meta = gemma_meta(2, sliding_window=10, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    write_gguf(folder, gguf.MODEL_ARCH.GEMMA2, tensors, meta, gemma_queries(norms=False))


def gemma3(out):
    ropes = dict(full_attention=dict(rope_type="linear", factor=2.0, rope_theta=1e6),
                 sliding_attention=dict(rope_type="default", rope_theta=1e4))
    config = transformers.Gemma3TextConfig(**gemma_sizes(6), head_dim=HEAD, sliding_window=10,
                                           query_pre_attn_scalar=GEMMA_SCALAR, rope_parameters=ropes)
    folder, tensors = from_transformers(out, "gemma3", config, less_one=True)
    meta = gemma_meta(6, sliding_window=10, rope_scaling_factors=2.0) | dict(rope_freq_base=1e6)
    meta["rope_scaling_type"], meta["rope_scaling_factor"] = gguf.RopeScalingType.LINEAR, meta.pop("rope_scaling_factors")
    write_gguf(folder, gguf.MODEL_ARCH.GEMMA3, tensors, meta, gemma_queries(norms=True))


GEMMA3N_WIDTHS = [64, 32, 64, 64, 96, 64, 64]
GEMMA3N_SLICE = dict(skip=[1, 5], widths=[32, 64, 32, 96, 32])


def gemma3n_config(layers, **more):
    """Layers of both kinds, the last of which share keys and values; a table of fewer tokens than the vocabulary has."""
    kinds = ["sliding_attention", "full_attention"]
    return transformers.Gemma3nTextConfig(
        **gemma_sizes(len(layers)) | more, head_dim=HEAD, sliding_window=10, layer_types=[kinds[i % 2] for i in layers],
        num_kv_shared_layers=sum(i >= 4 for i in layers), final_logit_softcapping=12.0,
        activation_sparsity_pattern=[[0.0, 0.6, 0.3][i % 3] for i in layers], laurel_rank=32, altup_num_inputs=3,
        altup_active_idx=1, vocab_size_per_layer_input=VOCAB - 9, hidden_size_per_layer_input=32)


def gemma3n_random(config):
    """Routers that matter although what they read is divided by the width, yet leave the streams apart."""
    model = randomised(transformers.AutoModelForCausalLM.from_config(config), "gemma3n")
    for key, weight in model.named_parameters():
        if "modality_router" in key:
            weight.data = (weight.data * 4).half().float()
    return model


def gemma3n_slice(model, widths):
    """The reference's smaller model with a slice of the same weights, as Google's MatFormer Lab cuts it."""
    kept = [i for i in range(7) if i not in GEMMA3N_SLICE["skip"]]
    config = gemma3n_config(kept, intermediate_size=widths)
    small = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    given = model.state_dict()
    columns = np.concatenate([np.arange(32) + 32 * i for i in kept])
    for key, weight in small.state_dict().items():
        source = key
        if ".layers." in key:
            parts = key.split(".")
            at = int(parts[2])
            source = ".".join(parts[:2] + [str(kept[at])] + parts[3:])
        value = given[source]
        if "embed_tokens_per_layer" in key:
            value = value[:, columns]
        elif "per_layer_model_projection" in key:
            value = value[columns]
        elif ".mlp." in key:
            value = value[:, : widths[at]] if "down_proj" in key else value[: widths[at]]
        weight.copy_(value)
    return logits(small)


def gemma3n(out):
    """As the published files: the text part of a multimodal model, with keys and values that nothing reads."""
    config = gemma3n_config(range(7), intermediate_size=GEMMA3N_WIDTHS)
    model = gemma3n_random(config)
    tensors = {key: value.detach().numpy() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    idle = {f"model.layers.{i}.self_attn.{part}.weight": shape for i in (4, 5, 6)
            for part, shape in dict(k_proj=(HEAD, HIDDEN), v_proj=(HEAD, HIDDEN), k_norm=(HEAD,)).items()}
    tensors |= random_tensors("idle", idle)
    text = config.to_diff_dict()
    for key in ("transformers_version", "dtype", "attn_implementation", "_attn_implementation"):
        text.pop(key, None)
    settings = dict(architectures=["Gemma3nForConditionalGeneration"], model_type="gemma3n", text_config=text,
                    bos_token_id=0, eos_token_id=1, pad_token_id=0)
    named = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
    named["model.vision_tower.stem.weight"] = np.zeros((2, 2))
    folder = write(out, "gemma3n", settings, named, logits(model))
    rows = gemma3n_slice(model, GEMMA3N_SLICE["widths"])
    (folder / "slice.f32").write_bytes(np.ascontiguousarray(rows, dtype="<f4").tobytes())
    write_dropped(folder, gemma3n_slice(model, [GEMMA3N_WIDTHS[i] for i in kept("gemma3n", 7)]))
    files = {}
    for key, value in tensors.items():
        if key.split(".")[1] in ("altup_projections", "altup_unembed_projections"):
            stack = key.rsplit(".", 2)[0] + ".weight"
            files[stack] = np.stack([tensors[f"{stack.removesuffix('weight')}{i}.weight"] for i in range(2)])
        else:
            files[key + ".weight" if key.endswith("_scale") else key] = value
    normal = torch.distributions.normal.Normal(0, 1)
    meta = gemma_meta(7, sliding_window=10, final_logit_softcapping=12.0, altup_active_idx=1, altup_num_inputs=3,
                      embedding_length_per_layer_input=32, shared_kv_layers=3,
                      activation_sparsity_scale=[normal.icdf(torch.tensor(share)).item()
                                                 for share in config.activation_sparsity_pattern],
                      sliding_window_pattern=[kind == "sliding_attention" for kind in config.layer_types])
    write_gguf(folder, gguf.MODEL_ARCH.GEMMA3N, files, meta | dict(feed_forward_length=GEMMA3N_WIDTHS, rope_freq_base=1e6))


def gemma4_config(layers):
    """As E2B: larger heads in layers with full attention, and wider networks in those that share keys and values."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    return transformers.Gemma4TextConfig(
        **gemma_sizes(len(layers)), head_dim=HEAD, global_head_dim=2 * HEAD, sliding_window=10,
        layer_types=["full_attention" if i == 6 else kinds[i % 3] for i in layers],
        num_kv_shared_layers=sum(i >= 4 for i in layers), use_double_wide_mlp=True, final_logit_softcapping=12.0,
        vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=32)


def gemma4_smaller(model):
    """The logits of the model that has the kept layers alone."""
    layers = kept("gemma4", 7)
    small = transformers.AutoModelForCausalLM.from_config(gemma4_config(layers))
    left = without(model.state_dict(), layers)
    columns = np.concatenate([np.arange(32) + 32 * i for i in layers])
    for key in ("model.embed_tokens_per_layer.weight", "model.per_layer_model_projection.weight"):
        left[key] = left[key][:, columns] if "embed" in key else left[key][columns]
    small.load_state_dict(left)
    return logits(small.float().eval())


def gemma4(out):
    """As the published files: the text part of a multimodal model, with keys and values that nothing reads."""
    config = gemma4_config(range(7))
    model = randomised(transformers.AutoModelForCausalLM.from_config(config), "gemma4")
    for i, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.5 + 0.25 * i)
        # Scores are not divided by the root of the size of a head, and would select single tokens.
        layer.self_attn.q_norm.weight.data = (layer.self_attn.q_norm.weight * 0.25).half().float()
    tensors = {key: value.detach().numpy() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    idle = {f"model.layers.{i}.self_attn.{part}.weight": (size, *cols) for i, size in ((4, HEAD), (5, 2 * HEAD), (6, 2 * HEAD))
            for part, cols in dict(k_proj=(HIDDEN,), v_proj=(HIDDEN,), k_norm=()).items()}
    tensors |= random_tensors("idle", idle)
    text = config.to_diff_dict()
    for key in ("transformers_version", "dtype", "attn_implementation", "_attn_implementation", "per_layer_config"):
        text.pop(key, None)
    text["global_head_dim"] = 2 * HEAD
    settings = dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", text_config=text,
                    bos_token_id=0, eos_token_id=1, pad_token_id=0)
    named = {key.replace("model.", "model.language_model.", 1): value for key, value in tensors.items()}
    named["model.vision_tower.patch_embedder.input_proj.weight"] = np.zeros((2, 2))
    named["model.audio_tower.layers.0.norm_out.weight"] = np.zeros(2)
    folder = write(out, "gemma4", settings, named, logits(model))
    write_dropped(folder, gemma4_smaller(model))
    meta = gemma_meta(7, sliding_window=10, final_logit_softcapping=12.0, embedding_length_per_layer_input=32,
                      shared_kv_layers=3, key_length_swa=HEAD, value_length_swa=HEAD, rope_dimension_count_swa=HEAD,
                      sliding_window_pattern=[kind == "sliding_attention" for kind in config.layer_types],
                      tensors={"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12, np.float32)})
    files = {key + ".weight" if key.endswith("layer_scalar") else key: value for key, value in tensors.items()}
    write_gguf(folder, gguf.MODEL_ARCH.GEMMA4, files,
               meta | dict(feed_forward_length=[INNER] * 4 + [2 * INNER] * 3, rope_freq_base=1e6, rope_freq_base_swa=1e4,
                           key_length=2 * HEAD, value_length=2 * HEAD, rope_dimension_count=2 * HEAD))


def gpt2(out):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=HIDDEN, n_layer=2, n_head=HEADS, n_positions=CONTEXT,
                                     n_inner=INNER, bos_token_id=0, eos_token_id=1, attn_implementation="eager")
    folder, tensors = from_transformers(out, "gpt2", config)
    meta = llama_meta(head_count_kv=HEADS, layer_norm_eps=1e-5)
    for key in ("layer_norm_rms_eps", "rope_freq_base", "rope_dimension_count"):
        meta.pop(key)
    linear = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    write_gguf(folder, gguf.MODEL_ARCH.GPT2, tensors, meta,
               lambda key, value: value.T if key.endswith(linear) else value)


def openelm(out):
    """Two layers of different widths and numbers of heads."""
    config = dict(architectures=["OpenELMForCausalLM"], model_type="openelm", vocab_size=VOCAB, model_dim=HIDDEN,
                  head_dim=HEAD, num_transformer_layers=2, max_context_length=CONTEXT, num_query_heads=[2, 4],
                  num_kv_heads=[1, 2], ffn_multipliers=[0.5, 1.5], ffn_dim_divisor=32, ffn_with_glu=True,
                  activation_fn_name="swish", normalization_layer_name="rms_norm", normalize_qk_projections=True,
                  share_input_output_layers=True, rope_freq_constant=10000, rope_max_length=2 * CONTEXT,
                  bos_token_id=0, eos_token_id=1)
    inner = [32, 96]
    shapes = {"transformer.token_embeddings.weight": (VOCAB, HIDDEN), "transformer.norm.weight": (HIDDEN,)}
    for layer, (heads, kv) in enumerate(zip(config["num_query_heads"], config["num_kv_heads"])):
        at = f"transformer.layers.{layer}."
        shapes |= {at + "attn.qkv_proj.weight": ((heads + 2 * kv) * HEAD, HIDDEN), at + "attn.q_norm.weight": (HEAD,),
                   at + "attn.k_norm.weight": (HEAD,), at + "attn.out_proj.weight": (HIDDEN, heads * HEAD),
                   at + "ffn.proj_1.weight": (2 * inner[layer], HIDDEN),
                   at + "ffn.proj_2.weight": (HIDDEN, inner[layer]),
                   at + "attn_norm.weight": (HIDDEN,), at + "ffn_norm.weight": (HIDDEN,)}
    tensors = random_tensors("openelm", shapes)
    folder = write(out, "openelm", config, tensors, independent.openelm(config, tensors, TOKENS))
    layers = kept("openelm", 2)
    small = config | dict(num_transformer_layers=len(layers),
                          **{key: [config[key][i] for i in layers] for key in ("num_query_heads", "num_kv_heads")})
    write_dropped(folder, independent.openelm(small, without(tensors, layers), TOKENS))
    split = {}
    for key, value in tensors.items():
        if key.endswith("proj_1.weight"):
            gate, up = np.split(value, 2)
            bid = key.split(".")[2]
            split[f"blk.{bid}.ffn_gate.weight"], split[f"blk.{bid}.ffn_up.weight"] = gate, up
    rest = {key: value for key, value in tensors.items() if not key.endswith("proj_1.weight")}
    meta = llama_meta(head_count=config["num_query_heads"], head_count_kv=config["num_kv_heads"],
                      feed_forward_length=inner, key_length=HEAD, value_length=HEAD,
                      tensors={key: value.astype(np.float16) for key, value in split.items()})
    write_gguf(folder, gguf.MODEL_ARCH.OPENELM, rest, meta)


def chatglm3(out):
    config = dict(architectures=["ChatGLMModel"], model_type="chatglm", padded_vocab_size=VOCAB, hidden_size=HIDDEN,
                  ffn_hidden_size=INNER, num_layers=2, num_attention_heads=HEADS, kv_channels=HEAD, seq_length=CONTEXT,
                  multi_query_attention=True, multi_query_group_num=KV_HEADS, add_qkv_bias=True, add_bias_linear=False,
                  layernorm_epsilon=1e-5, rmsnorm=True, post_layer_norm=True, rope_ratio=2,
                  apply_residual_connection_post_layernorm=False, tie_word_embeddings=False, original_rope=True,
                  bos_token_id=0, eos_token_id=1)
    shapes = {"transformer.embedding.word_embeddings.weight": (VOCAB, HIDDEN),
              "transformer.encoder.final_layernorm.weight": (HIDDEN,),
              "transformer.output_layer.weight": (VOCAB, HIDDEN)}
    rows = (HEADS + 2 * KV_HEADS) * HEAD
    for layer in range(2):
        at = f"transformer.encoder.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,),
                   at + "self_attention.query_key_value.weight": (rows, HIDDEN),
                   at + "self_attention.query_key_value.bias": (rows,),
                   at + "self_attention.dense.weight": (HIDDEN, HEADS * HEAD),
                   at + "mlp.dense_h_to_4h.weight": (2 * INNER, HIDDEN),
                   at + "mlp.dense_4h_to_h.weight": (HIDDEN, INNER)}
    tensors = random_tensors("chatglm3", shapes)
    folder = write(out, "chatglm3", config, tensors, independent.chatglm(config, tensors, TOKENS))
    layers = kept("chatglm3", 2)
    small = config | dict(num_layers=len(layers))
    write_dropped(folder, independent.chatglm(small, without(tensors, layers), TOKENS))
    meta = llama_meta(rope_dimension_count=HEAD // 2, rope_freq_base=20000.0, layer_norm_rms_eps=1e-5)
    write_gguf(folder, gguf.MODEL_ARCH.CHATGLM,
               {key.removeprefix("transformer."): value for key, value in tensors.items()}, meta)


def ernie(out):
    """Heads other than the hidden width divided by their number, and biases, which the published files leave out."""
    config = transformers.Ernie4_5Config(**SIZES, rms_norm_eps=1e-5, head_dim=32, use_bias=True, tie_word_embeddings=True)
    folder, tensors = from_transformers(out, "ernie4.5", config)
    meta = llama_meta(layer_norm_rms_eps=1e-5, rope_freq_base=500000.0, rope_dimension_count=32, key_length=32,
                      value_length=32)
    write_gguf(folder, gguf.MODEL_ARCH.ERNIE4_5, tensors, meta)


FAMILIES = dict(llama=llama, mistral=mistral, qwen2=qwen2, qwen2_5=qwen2_5, qwen3=qwen3, qwen3_moe=qwen3_moe, qwen3_moe_mixed=qwen3_moe_mixed,
                qwen3_5=qwen3_5, gpt_oss=gpt_oss, gpt_oss_mxfp4=gpt_oss_mxfp4,
                smollm3=smollm3, olmo2=olmo2, exaone4=exaone4, exaone4_window=exaone4_window, lfm2=lfm2, lfm2_moe=lfm2_moe, lfm2_moe_scaled=lfm2_moe_scaled, phi3=phi3, phi3_long=phi3_long,
                phi4_mini=phi4_mini, granite=granite, granite4=granite4, granite4_h=granite4_h, granite4_h_moe=granite4_h_moe, stablelm=stablelm, stablelm2=stablelm2, gemma2=gemma2, gemma3=gemma3, gemma3n=gemma3n, gemma4=gemma4, gpt2=gpt2,
                openelm=openelm, chatglm3=chatglm3, ernie=ernie)

if __name__ == "__main__":
    tokenizer(Path(sys.argv[1]))
    for chosen in sys.argv[2:] or FAMILIES:
        FAMILIES[chosen](Path(sys.argv[1]))
