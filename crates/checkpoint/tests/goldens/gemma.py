"""What sentencepiece makes of hard texts with Gemma 3's vocabulary, as its GGUF file has it.

    python gemma.py GEMMA3.gguf vocabularies/gemma3

writes gemma3.inp (texts, in the layout of llama.cpp's own) and gemma3.out (a line of ids for each). Needs gguf,
sentencepiece and protobuf; nothing of Narthex or llama.cpp runs here. The pieces, scores and types of the file are
those of Gemma's sentencepiece model, and such a model is made of them again.
"""

import sys
from pathlib import Path

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2 as proto

SEPARATOR = "\n__ggml_vocab_test__\n"

CASES = [
    "Hello, world!",
    "  two  leading,   three inside,trailing   ",
    "tabs\tand\n\nnew\r\nlines\n \n  x",
    "I'll say it's we've don't 'TIS I'M",
    "1234567890 3.14159 1,000,000 2026-11-21",
    "def f(x):\n    return x**2  # square\n",
    'if (a<=b&&c!=d){ printf("%s\\n", e[0]); }',
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "e\u0301 vs \u00e9, A\u030a\u0323, \u1e9b\u0323",
    "中文測試，日本語テスト、한국어 시험",
    "👍🏽 👩‍👩‍👧‍👦 🇨🇿 🙂",
    "zero\u200bwidth\u200djoiner\u200c\ufeff soft\u00adhyphen",
    "مرحبا بالعالم שלום नमस्ते",
    "½ ² Ⅷ ０１２ ①",
    "\u00a0nbsp\u2003em\u3000ideographic\u2028line",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<unused7><unused7> <table><tr>|</tr></table> [multimodal]",
    "𓀀 𒐪 a \U000e0041",
    "ﬁ ﬀ ª Å",
    "\n\n\n\n\n\t\t\t                x",
    " ",
    "x",
]


def model(path):
    fields = GGUFReader(path).fields
    read = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    assert read("model") == "llama" and not read("add_space_prefix")
    made = proto.ModelProto()
    for piece, score, kind in zip(read("tokens"), read("scores"), read("token_type")):
        # Converters to GGUF write the spaces of user-defined pieces out.
        made.pieces.add(piece=piece.replace(" ", "▁"), score=score, type=kind)
    trainer, normalizer = made.trainer_spec, made.normalizer_spec
    trainer.model_type, trainer.byte_fallback = proto.TrainerSpec.BPE, True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    trainer.unk_piece, trainer.bos_piece, trainer.eos_piece, trainer.pad_piece = "<unk>", "<bos>", "<eos>", "<pad>"
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=made.SerializeToString())


if __name__ == "__main__":
    processor, out = model(sys.argv[1]), Path(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    ids = [processor.encode(text) for text in CASES]
    assert all(3 not in line for line in ids)
    out.with_suffix(".inp").write_text(SEPARATOR.join(CASES), newline="")
    out.with_suffix(".out").write_text("".join(" ".join(map(str, line)) + "\n" for line in ids))
