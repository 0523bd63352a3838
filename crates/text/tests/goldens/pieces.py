"""Small SentencePiece models, and what sentencepiece makes of hard texts with them.

    python pieces.py OUT_FOLDER

writes NAME.model and NAME.json (texts with their ids and the text of those again) for three kinds of models: as Llama's
and ChatGLM3's, as Gemma's, and as those of XLM-R and T5. Needs what make.py needs.

    python pieces.py OUT_FOLDER MODEL...

writes MODEL.json alone for models that there are.
"""

import io
import json
import sys
from pathlib import Path

import sentencepiece

from make import CASES, CORPUS

KINDS = {
    "llama": dict(model_type="bpe", vocab_size=520, byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
    "gemma": dict(model_type="bpe", vocab_size=520, byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False, add_dummy_prefix=False, split_digits=True,
                  allow_whitespace_only_pieces=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                  user_defined_symbols=["<table>", "\n", "\n\n", "▁▁", "▁▁▁", "▁▁▁▁"]),
    "unigram": dict(model_type="unigram", vocab_size=125),
    "plain": dict(model_type="bpe", vocab_size=230),
}

# Of NFKC, what the texts need, in the layout of sentencepiece's own tables: the code points and what stands for them.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "½": "1/2", "²": "2", "Ⅷ": "VIII", "①": "1",
         "ﬁ": "fi", "ﬀ": "ff", "ª": "a", "\u212b": "\u00c5", "，": ",", "\u00ad": "", "e\u0301": "é"}

MORE = ["sophisticated   sop", "<table><table> </table>", "a\n\n\nb", "    def f():\n        pass", "zzz€€€zzz"]


def codes(text):
    return " ".join(f"{ord(c):X}" for c in text)


def trained(out, settings):
    model = io.BytesIO()
    if "normalization_rule_name" not in settings:
        rules = out / "rules.tsv"
        rules.write_text("".join(f"{codes(a)}\t{codes(b)}\n" for a, b in RULES.items()))
        settings = settings | {"normalization_rule_tsv": str(rules)}
    lines = CORPUS.strip().splitlines() * 3
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, minloglevel=2,
                                             character_coverage=1.0, **settings)
    (out / "rules.tsv").unlink(missing_ok=True)
    return model.getvalue()


def record(path, model):
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = []
    for text in [*CASES, *MORE, *CORPUS.strip().splitlines()]:
        ids = reference.encode(text)
        # sentencepiece writes ⁇ for what is unknown, Narthex nothing.
        known = reference.unk_id() not in ids
        cases.append({"text": text, "ids": ids, "decoded": reference.decode(ids) if known else None})
    path.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        for path in map(Path, sys.argv[2:]):
            record(out / f"{path.name}.json", path.read_bytes())
        return
    for name, settings in KINDS.items():
        model = trained(out, settings)
        (out / f"{name}.model").write_bytes(model)
        record(out / f"{name}.json", model)


main()
