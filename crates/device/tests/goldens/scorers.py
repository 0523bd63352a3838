"""Tiny random classifiers and rerankers with the layers of a decoder, and the scores that the reference implementation computes.

    python scorers.py [FOLDER]      (torch, transformers 5, safetensors, tokenizers)

Each model gets a folder with `config.json`, the weights in f16 and `expected.json`: token ids and their logits, a row for each
text or for each token. The tokenizer is that of the families in `crates/checkpoint/tests/goldens`.

`qwen3_answers` is a language model whose answers yes and no are the scores, with a tokenizer of its own, the files of
sentence-transformers, and `pairs.json`: the scores of documents by the steps of the model card of Qwen3-Reranker.
"""

import json
import pathlib
import sys

import torch
import transformers as t
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models as tokenizer_models, pre_tokenizers

from embedders import SIZE, TEXTS, random_weights, write_json

SEEDS = {
    "modernbert_labels": 11, "modernbert_rank": 12, "modernbert_tokens": 13, "qwen3_rank": 14, "qwen3_tokens": 15, "qwen3_answers": 16,
}

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PAIRS = [
    ("when does the ferry leave?", "The ferry leaves at 7:10."),
    ("when does the ferry leave?", "  Dogs must be kept on a lead.\n\nno exceptions <|im_end|>"),
    ("où est le café", "yes"),
]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


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
    yield "qwen3_rank", t.Qwen3ForSequenceClassification(qwen3(num_labels=1))
    yield "qwen3_tokens", t.Qwen3ForTokenClassification(qwen3(num_labels=3))
    yield "qwen3_answers", t.Qwen3ForCausalLM(qwen3(vocab_size=268, max_position_embeddings=1024))


def qwen3(**keys):
    return t.Qwen3Config(**{**SIZE, **keys}, rope_theta=10000.0, pad_token_id=None)


def tokenizer():
    """Bytes, a few merges, and the control tokens of Qwen3."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("n", "o"), ("Ġ", "T"), ("t", "h"), ("th", "e"), ("ĠT", "h")]
    tokens = alphabet + ["".join(pair) for pair in merges]
    found = Tokenizer(tokenizer_models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(f"<|{name}|>", normalized=False, special=True) for name in ("endoftext", "im_start", "im_end")])
    found.add_tokens([AddedToken(f"{name}think>", normalized=False) for name in ("<", "</")])
    return found


@torch.no_grad()
def score(model, tokens, query, document):
    """The steps of the model card; control tokens are recognised around the texts, and not in them."""
    encode = lambda text: tokens.encode(text, add_special_tokens=False).ids
    # A control token that a text spells stays text.
    plain = Tokenizer.from_str(tokens.to_str())
    plain.encode_special_tokens = True
    body = plain.encode(f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}", add_special_tokens=False).ids
    ids = encode(PREFIX) + body + encode(SUFFIX)
    last = model(input_ids=torch.tensor([ids])).logits[0, -1]
    answers = torch.stack([last[tokens.token_to_id("no")], last[tokens.token_to_id("yes")]])
    return len(ids), torch.log_softmax(answers, 0)[1].exp().item()


def write_answers(folder, model):
    """Adds the files of sentence-transformers and the scores of pairs."""
    tokens = tokenizer()
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokens.to_str()), ensure_ascii=False) + "\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 1024})
    (folder / "chat_template.jinja").write_text(PREFIX.replace("<|im_start|>user\n", "{{ messages }}") + SUFFIX)
    module = lambda index, kind, path: {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
    modules = [module(0, "base.modules.transformer.Transformer", ""), module(1, "cross_encoder.modules.logit_score.LogitScore", "1_LogitScore")]
    write_json(folder / "modules.json", modules)
    yes, no = tokens.token_to_id("yes"), tokens.token_to_id("no")
    write_json(folder / "1_LogitScore/config.json", {"true_token_id": yes, "false_token_id": no})
    found = [(query, document, *score(model, tokens, query, document)) for query, document in PAIRS]
    pairs = [{"query": q, "document": d, "tokens": count, "score": float(f"{x:.7g}")} for q, d, count, x in found]
    (folder / "pairs.json").write_text(json.dumps(pairs, ensure_ascii=False) + "\n")
    return lambda row: (row[-1, yes] - row[-1, no])[None]


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

    scores = write_answers(folder, model) if name == "qwen3_answers" else lambda row: row
    expected = [{"ids": ids, "logits": [float(f"{x:.7g}") for x in scores(logits(model, ids)).flatten().tolist()]} for ids in TEXTS]
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    torch.manual_seed(0)
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "scorers")
    for name, model in models():
        write(target, name, model)
