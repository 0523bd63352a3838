"""Tiny random classifiers of texts and of tokens, and what the reference implementation computes of them.

    python classifiers.py [FOLDER]      (torch, transformers 5, tokenizers, safetensors, numpy)

Each family gets a folder as those of `encoders.py`. `model.safetensors` has the body and both heads; where these have one
name in transformers, they are one weight. `expected.json` has logits, and the entities of transformers' pipeline with
`aggregation_strategy` none and simple.
"""

import json
import pathlib
import sys

import torch
import transformers as t
from safetensors.torch import save_file

from encoders import PAIRS, TEXTS, families, listed, random_weights

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "LOC"]
HEADS = {"ForSequenceClassification": t.AutoModelForSequenceClassification,
         "ForTokenClassification": t.AutoModelForTokenClassification}
# Texts with characters of several bytes, and with none that is a token.
MORE = ["été: the cat of Zoë runs by the river", "the river of the house, where a dog and a cat sleep?"]


class Family:
    def __init__(self, name, config_class, settings, tokenizer, folder):
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer, self.roles = tokenizer()
        names = dict(enumerate(LABELS))
        self.config = config_class(
            vocab_size=self.tokenizer.get_vocab_size(), id2label=names, label2id={v: k for k, v in names.items()}, **settings
        )
        self.types = name in ("bert", "mobilebert")
        self.models, self.tensors = {}, {}
        for suffix, auto in HEADS.items():
            model = random_weights(auto.from_config(self.config), 20)
            state = model.state_dict()
            for key, value in state.items():
                if self.tensors.get(key, value).shape == value.shape:
                    state[key] = self.tensors.get(key, value)
            model.load_state_dict(state)
            self.tensors |= model.state_dict()
            self.models[suffix] = model
        self.base = config_class.__name__.removesuffix("Config")
        wrapped = t.PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, **self.roles)
        self.pipeline = lambda how: t.TokenClassificationPipeline(
            model=self.models["ForTokenClassification"], tokenizer=wrapped, aggregation_strategy=how
        )

    def write(self):
        tensors = {k: v.half().contiguous() for k, v in self.tensors.items() if "position_ids" not in k}
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        config = self.config.to_diff_dict()
        config |= {"architectures": [self.base + "Model"], "model_type": self.config.model_type}
        config["id2label"] = {str(k): v for k, v in self.config.id2label.items()}
        for key in ("transformers_version", "label2id"):
            config.pop(key, None)
        (self.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        tokens = json.loads(self.tokenizer.to_str())
        (self.folder / "tokenizer.json").write_text(json.dumps(tokens, ensure_ascii=False) + "\n")
        stated = {**self.roles, "model_max_length": 64}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(stated, indent=1) + "\n")
        expected = {"labels": [self.case("ForSequenceClassification", *x) for x in [(x,) for x in TEXTS] + PAIRS],
                    "tokens": [self.entities(x) for x in TEXTS + MORE]}
        (self.folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")

    @torch.no_grad()
    def case(self, suffix, *texts):
        encoding = self.tokenizer.encode(*texts)
        ids, types = encoding.ids, encoding.type_ids if self.types else [0] * len(encoding.ids)
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if self.types:
            inputs["token_type_ids"] = torch.tensor([types])
        logits = self.models[suffix](**inputs).logits[0]
        best = logits.sort(-1, descending=True).values
        # What another order of sums could change is no reference.
        assert (best[..., 0] - best[..., 1]).min() > 1e-3, (texts, best)
        return {"texts": list(texts), "ids": ids, "types": types, "logits": listed(logits)}

    def entities(self, text):
        found = {}
        for how in ("none", "simple"):
            key = "entity" if how == "none" else "entity_group"
            found[how] = [
                {"label": x[key], "score": float(f"{x['score']:.6g}"), "start": x["start"], "end": x["end"],
                 "text": text[x["start"] : x["end"]]} for x in self.pipeline(how)(text)
            ]
        return {**self.case("ForTokenClassification", text), **found}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "classifiers")
    for name, config_class, settings, tokenizer in families():
        if name != "nomic":
            Family(name, config_class, settings, tokenizer, folder).write()
