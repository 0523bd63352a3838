"""Tiny random encoders with every head, and what the reference implementation computes of them.

    python encoders.py [FOLDER]      (torch, transformers 5, tokenizers, safetensors, numpy)

Each family gets a folder with `config.json`, `model.safetensors` (the body and all heads, f16), tokenizer files and
`expected.json`. A test states in `config.json` which head is meant. Weights are large enough that every part of the
computation shows in the results. Answers are those of transformers 4's question-answering pipeline with
`handle_impossible_answer=True, align_to_words=False`, which version 5 has no longer: it is written out below.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers as t
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TEXTS = ["the cat sleeps", "a dog runs to the river", "what is it?", "the house by the river was in the water on that day"]
PAIRS = [
    ("what sleeps?", "the cat sleeps in the house."),
    ("what sleeps?", "a dog runs to the river."),
    ("where is the river", "it is on the way to the house, by the water"),
]
QUESTION = "where does the dog run?"
CONTEXT = "the cat sleeps in the house. a dog runs to the river, and the river runs by the house of the cat."
MASKED = ["the {} sleeps", "a {} runs to the {}."]
# Texts to which tokens are added: how many, in how many rounds.
REFINED = [("the {} by the river", 5, 3), ("a dog", 4, 4), ("what {}?", 2, 10)]

# Tokens of the context in a window, and those that windows share.
ROOM, STRIDE, LONGEST_ANSWER, BEST = 20, 8, 15, 3


def words():
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    whole = "the of and to in is it on by was that cat dog house river run what where sleep day".split()
    return letters, whole


def wordpiece():
    letters, whole = words()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + letters + ["##" + x for x in letters] + list(".,!?") + whole
    tokenizer = Tokenizer(models.WordPiece({x: i for i, x in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return tokenizer, roles


ROBERTA = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
ROBERTA |= {"bos_token": "<s>", "eos_token": "</s>"}


def bytelevel():
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    merges = "Ġ t|h e|Ġt he|Ġ r|i n|o u|Ġ c|a t|Ġc at|e r".split("|")
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet()) + [m.replace(" ", "") for m in merges]
    vocab = {x: i for i, x in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer, ROBERTA


def unigram():
    letters, whole = words()
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(x, -6.0) for x in letters + list(".,!?")] + [("▁" + x, -4.0) for x in whole]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer, ROBERTA


def families():
    size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, hidden_act="gelu")
    roberta = dict(size, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
    bert = dict(size, max_position_embeddings=64, layer_norm_eps=1e-12)
    distil = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64, activation="gelu")
    mobile = dict(
        hidden_size=64, embedding_size=32, intra_bottleneck_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, num_feedforward_networks=3, max_position_embeddings=64, hidden_act="relu",
    )
    nomic = dict(size, max_position_embeddings=64, layer_norm_eps=1e-12, hidden_act="silu")
    nomic |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
    yield "bert", t.BertConfig, bert, wordpiece
    yield "distilbert", t.DistilBertConfig, distil, wordpiece
    yield "mobilebert", t.MobileBertConfig, mobile, wordpiece
    yield "roberta", t.RobertaConfig, roberta, bytelevel
    yield "xlm-roberta", t.XLMRobertaConfig, roberta, unigram
    yield "nomic", t.NomicBertConfig, nomic, wordpiece


def random_weights(model, seed):
    # Without a norm that holds them back, MobileBERT's rows grow from layer to layer.
    gain = 0.7 if model.config.model_type == "mobilebert" else 1.5
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    for name, value in state.items():
        noise = torch.randn(value.shape, generator=generator)
        norm = "norm" in name.lower()
        if norm and name.endswith("weight"):
            value = 1 + 0.1 * noise
        elif value.dim() < 2:
            value = 0.1 * noise
        elif "embeddings" in name and "transformation" not in name:
            value = noise
        else:
            value = noise * gain / value.shape[-1] ** 0.5
        # What is stored is what is computed with.
        state[name] = value.half().float()
    model.load_state_dict(state)
    model.tie_weights()
    return model.eval()


def listed(values, digits=7):
    return [float(f"{x:.{digits}g}") for x in values.flatten().tolist()]


def fused(state):
    """The names and the fused projections of the published files of Nomic BERT."""
    names = {"layers.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln", "self_attn.o_proj": "attn.out_proj",
             "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2",
             "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    tensors = {}
    for name, value in state.items():
        if "q_proj" in name:
            value = torch.cat([state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")])
            name = name.replace("self_attn.q_proj", "attn.Wqkv")
        for old, new in names.items():
            name = name.replace(old, new)
        if "k_proj" not in name and "v_proj" not in name:
            tensors[name] = value.half().contiguous()
    return tensors


class Family:
    def __init__(self, name, config_class, settings, tokenizer, folder):
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer, self.roles = tokenizer()
        self.config = config_class(vocab_size=self.tokenizer.get_vocab_size(), num_labels=1, **settings)
        spans = config_class(vocab_size=self.tokenizer.get_vocab_size(), num_labels=2, **settings)
        self.types = name in ("bert", "mobilebert", "nomic")
        # Nomic's models give vectors only.
        self.heads = name != "nomic"
        base = config_class.__name__.removesuffix("Config")
        heads = {"Model": t.AutoModel, "ForSequenceClassification": t.AutoModelForSequenceClassification,
                 "ForQuestionAnswering": t.AutoModelForQuestionAnswering, "ForMaskedLM": t.AutoModelForMaskedLM}
        if not self.heads:
            heads = {"Model": t.AutoModel}
        body, self.models, self.tensors = None, {}, {}
        for seed, (suffix, auto) in enumerate(heads.items()):
            config = spans if suffix == "ForQuestionAnswering" else self.config
            model = random_weights(auto.from_config(config), seed)
            prefix = "" if body is None else model.base_model_prefix + "."
            if body is None:
                body = model.state_dict()
            if not self.heads:
                self.tensors = fused(body)
            elif suffix != "Model":
                state = model.state_dict()
                for key in state:
                    if key.startswith(prefix) and key.removeprefix(prefix) in body:
                        state[key] = body[key.removeprefix(prefix)]
                model.load_state_dict(state)
                model.tie_weights()
                # Tied tensors are stored once, as save_pretrained does.
                tied = getattr(model, "all_tied_weights_keys", None) or {}
                kept = {k: v for k, v in model.state_dict().items() if k not in tied}
                self.tensors |= {k: v.half().contiguous() for k, v in kept.items()}
            self.models[suffix] = model
        self.base = base

    def write(self):
        save_file(self.tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        config = self.config.to_diff_dict()
        config |= {"architectures": [self.base + "Model"], "model_type": self.config.model_type}
        for key in ("transformers_version", "id2label", "label2id"):
            config.pop(key, None)
        if self.config.num_labels == 1:
            config["id2label"] = {"0": "LABEL_0"}
        (self.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        tokens = json.loads(self.tokenizer.to_str())
        (self.folder / "tokenizer.json").write_text(json.dumps(tokens, ensure_ascii=False) + "\n")
        stated = {**self.roles, "model_max_length": 64}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(stated, indent=1) + "\n")
        (self.folder / "expected.json").write_text(json.dumps(self.expected(), ensure_ascii=False) + "\n")

    @torch.no_grad()
    def run(self, suffix, ids, types):
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if self.types:
            inputs["token_type_ids"] = torch.tensor([types])
        return self.models[suffix](**inputs)

    def encoded(self, *texts):
        encoding = self.tokenizer.encode(*texts)
        return encoding.ids, encoding.type_ids

    def expected(self):
        if not self.heads:
            return {"texts": [self.text(x) for x in TEXTS]}
        return {"texts": [self.text(x) for x in TEXTS], "pairs": [self.pair(*x) for x in PAIRS],
                "answer": self.answer(), "masked": [self.masked(x) for x in MASKED],
                "refined": [self.refined(*x) for x in REFINED]}

    def text(self, text):
        ids, types = self.encoded(text)
        rows = self.run("Model", ids, types).last_hidden_state[0]
        pooled = {"mean": rows.mean(0), "cls": rows[0], "max": rows.max(0).values, "lasttoken": rows[-1]}
        return {"text": text, "ids": ids, **{k: listed(v) for k, v in pooled.items()}}

    def pair(self, first, second):
        ids, types = self.encoded(first, second)
        logits = self.run("ForSequenceClassification", ids, types).logits[0]
        spans = self.run("ForQuestionAnswering", ids, types)
        spans = torch.stack([spans.start_logits[0], spans.end_logits[0]], 1)
        types = types if self.types else [0] * len(types)
        return {"pair": [first, second], "ids": ids, "types": types, "logit": listed(logits)[0], "spans": listed(spans)}

    def masked(self, pattern):
        text = pattern.replace("{}", self.roles["mask_token"])
        ids, types = self.encoded(text)
        mask = self.tokenizer.token_to_id(self.roles["mask_token"])
        logits = self.run("ForMaskedLM", ids, types).logits[0]
        places = [i for i, x in enumerate(ids) if x == mask]
        return {"text": text, "ids": ids, "places": places, "logits": [listed(logits[i], 5) for i in places]}

    def refined(self, pattern, count, rounds):
        """Mask-predict (arXiv:1904.09324): all masks are filled, then the least certain ones again, without special tokens."""
        mark = self.roles["mask_token"]
        text = pattern.replace("{}", mark)
        ids, _ = self.encoded(text if mark in text else f"{text} {mark}")
        mask, special = self.tokenizer.token_to_id(mark), sorted(self.tokenizer.token_to_id(x) for x in set(self.roles.values()))
        at = ids.index(mask)
        ids, p, masked, close = ids[:at] + [mask] * count + ids[at + 1 :], np.zeros(count), list(range(count)), np.inf
        for left in range(rounds - 1, -1, -1):
            for i in masked:
                ids[at + i] = mask
            logits = self.run("ForMaskedLM", ids, [0] * len(ids)).logits[0].double()
            for i in masked:
                row = logits[at + i].clone()
                soft = torch.softmax(row, 0)
                row[special] = -torch.inf
                first, second = row.topk(2).values.tolist()
                close = min(close, first - second)
                ids[at + i], p[i] = int(row.argmax()), float(soft[row.argmax()])
            masked = np.argsort(p, kind="stable")
            cut = count * left // rounds
            if 0 < cut < count:
                close = min(close, p[masked[cut]] - p[masked[cut - 1]])
            masked = sorted(masked[:cut].tolist())
            if not masked:
                break
        # What another order of sums could change is no reference.
        assert close > 1e-4, (text, close)
        return {"text": text, "rounds": rounds, "tokens": ids[at : at + count], "scores": [float(f"{x:.6g}") for x in p]}

    def answer(self):
        whole = self.tokenizer.encode(QUESTION, CONTEXT)
        part = [i for i, s in enumerate(whole.sequence_ids) if s == 1]
        head, tail = list(range(part[0])), list(range(part[-1] + 1, len(whole.ids)))
        starts = [0]
        while starts[-1] + ROOM < len(part):
            starts.append(starts[-1] + ROOM - STRIDE)
        spans, null = {}, 1.0
        for first in starts:
            window = head + part[first : first + ROOM] + tail
            ids, types = [whole.ids[i] for i in window], [whole.type_ids[i] for i in window]
            output = self.run("ForQuestionAnswering", ids, types)
            seen = np.array([i == 0 or window[i] in set(part) for i in range(len(window))])
            soft = lambda x: (lambda y: y / y.sum())(np.exp(np.where(seen, x, -1e4) - np.where(seen, x, -1e4).max()))
            p, q = soft(output.start_logits[0].double().numpy()), soft(output.end_logits[0].double().numpy())
            null = min(null, p[0] * q[0])
            p[0] = q[0] = 0
            for i in range(len(window)):
                for j in range(i, min(i + LONGEST_ANSWER, len(window))):
                    if p[i] * q[j] > 0:
                        start, end = whole.offsets[window[i]][0], whole.offsets[window[j]][1]
                        text = CONTEXT[start:end]
                        place = (end - len(text.lstrip()), start + len(text.rstrip()))
                        spans[place] = max(spans.get(place, 0), p[i] * q[j])
        best = sorted(spans.items(), key=lambda x: -x[1])[:BEST]
        answers = [{"start": a, "end": b, "text": CONTEXT[a:b], "score": float(f"{s:.6g}")} for (a, b), s in best]
        limits = {"window": len(head) + ROOM + len(tail), "stride": STRIDE, "longest": LONGEST_ANSWER}
        return {"question": QUESTION, "context": CONTEXT, **limits, "answers": answers, "null": float(f"{null:.6g}")}


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "encoders")
    for name, config_class, settings, tokenizer in families():
        Family(name, config_class, settings, tokenizer, folder).write()
