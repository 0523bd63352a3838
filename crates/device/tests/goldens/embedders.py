"""Tiny random embedding models with the layers of a decoder, and the vectors that the reference implementation computes.

    python embedders.py [FOLDER]      (torch, transformers 5, safetensors)

Each family gets a folder with `config.json`, the weights in f16, the files of sentence-transformers and `expected.json`: token
ids and their vectors. The tokenizer is that of the families in `crates/checkpoint/tests/goldens`.
"""

import json
import pathlib
import sys

import torch
import transformers as t
from safetensors.torch import save_file

VOCAB = 80
TEXTS = [[2, 7, 11, 40], [5], list(range(3, 40)), [2, 9, 33, 12, 70, 41, 41, 8, 3]]

SIZE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-6,
)


def families():
    yield "qwen3", t.Qwen3Model(t.Qwen3Config(**SIZE, rope_theta=10000.0)), "lasttoken", [], True
    gemma = t.Gemma3TextConfig(
        **SIZE, use_bidirectional_attention=True, sliding_window=8, query_pre_attn_scalar=16, sliding_window_pattern=2
    )
    yield "gemma3", t.Gemma3TextModel(gemma), "mean_tokens", [64, 24], True


    sizes = {key: value for key, value in SIZE.items() if key not in ("num_key_value_heads", "head_dim", "rms_norm_eps")}
    tokens = {f"{name}_token_id": 3 for name in ("pad", "bos", "eos", "cls", "sep")}
    modern = t.ModernBertConfig(**sizes, **tokens, local_attention=8)
    yield "modernbert", t.ModernBertModel(modern), "cls_token", [], False


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    for name, value in state.items():
        noise = torch.randn(value.shape, generator=generator)
        if value.dim() < 2:
            # Gemma's norms store their gains minus one.
            value = 0.1 * noise + (0.0 if "Gemma" in type(model).__name__ else 1.0)
        elif "embed_tokens" in name:
            value = noise
        else:
            value = noise * 1.5 / value.shape[-1] ** 0.5
        # What is stored is what is computed with.
        state[name] = value.half().float()
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def vector(model, ids, pooling, dense, normalize):
    rows = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).last_hidden_state[0]
    pooled = {"lasttoken": rows[-1], "cls_token": rows[0], "mean_tokens": rows.mean(0)}[pooling]
    for weight in dense:
        pooled = weight.float() @ pooled
    return pooled / pooled.norm() if normalize else pooled


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def write(folder, name, model, pooling, widths, normalize):
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    model = random_weights(model, 7)
    save_file({key: value.half().contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    if name == "gemma3":
        # The class halves the window when it reads the file.
        config["sliding_window"] = 8
    for key in ("transformers_version", "id2label", "label2id", "_name_or_path"):
        config.pop(key, None)
    write_json(folder / "config.json", config)

    module = lambda index, kind, path: {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
    modules = [module(0, "Transformer", ""), module(1, "Pooling", "1_Pooling")]
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True})
    generator = torch.Generator().manual_seed(8)
    dense, width = [], model.config.hidden_size
    for out in widths:
        weight = (torch.randn(out, width, generator=generator) / width**0.5).half()
        path = f"{len(modules)}_Dense"
        keys = {"in_features": width, "out_features": out, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
        write_json(folder / path / "config.json", keys)
        save_file({"linear.weight": weight}, folder / path / "model.safetensors")
        modules.append(module(len(modules), "Dense", path))
        dense.append(weight)
        width = out
    if normalize:
        modules.append(module(len(modules), "Normalize", f"{len(modules)}_Normalize"))
    write_json(folder / "modules.json", modules)

    expected = [
        {"ids": ids, "vector": [float(f"{x:.7g}") for x in vector(model, ids, pooling, dense, normalize).tolist()]} for ids in TEXTS
    ]
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "embedders")
    for family in families():
        write(target, *family)
