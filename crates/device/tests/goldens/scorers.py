"""Tiny random classifiers and rerankers with the layers of a decoder, and the scores that the reference implementation computes.

    python scorers.py [FOLDER]      (torch, transformers 5, safetensors)

Each model gets a folder with `config.json`, the weights in f16 and `expected.json`: token ids and their logits, a row for each
text or for each token. The tokenizer is that of the families in `crates/checkpoint/tests/goldens`.
"""

import json
import pathlib
import sys

import torch
import transformers as t
from safetensors.torch import save_file

from embedders import SIZE, TEXTS, random_weights, write_json

SEEDS = {"modernbert_labels": 11, "modernbert_rank": 12, "modernbert_tokens": 13}


def modernbert(**keys):
    sizes = {key: value for key, value in SIZE.items() if key not in ("num_key_value_heads", "head_dim", "rms_norm_eps")}
    tokens = {f"{name}_token_id": 3 for name in ("pad", "bos", "eos", "cls", "sep")}
    return t.ModernBertConfig(**sizes, **tokens, local_attention=8, **keys)


def models():
    labels = {0: "calm", 1: "glad", 2: "angry"}
    config = modernbert(id2label=labels, classifier_pooling="mean", classifier_bias=True, classifier_activation="silu")
    yield "modernbert_labels", t.ModernBertForSequenceClassification(config)
    yield "modernbert_rank", t.ModernBertForSequenceClassification(modernbert(num_labels=1))
    yield "modernbert_tokens", t.ModernBertForTokenClassification(modernbert(num_labels=5))


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long)).logits[0]


def write(folder, name, model):
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    model = random_weights(model, SEEDS[name])
    save_file({key: value.half().contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    for key in ("transformers_version", "label2id", "_name_or_path"):
        config.pop(key, None)
    write_json(folder / "config.json", config)

    expected = [{"ids": ids, "logits": [float(f"{x:.7g}") for x in logits(model, ids).flatten().tolist()]} for ids in TEXTS]
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "scorers")
    for name, model in models():
        write(target, name, model)
