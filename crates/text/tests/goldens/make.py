"""Makes crates/text/tests/fixtures/*.json: small vocabularies, and what reference implementations make of hard texts.

    python make.py SMOLLM2.gguf MINILM_FOLDER OUT_FOLDER

Needs: gguf, regex, sentencepiece, tokenizers, transformers, jinja2. Nothing of Narthex runs here.

smollm.json   SmolLM2's vocabulary, cut down to what the texts can use. The ids are those of the whole vocabulary, by a
              plain Python BPE that follows llama.cpp, checked against transformers reading the same GGUF file.
minilm.json   all-MiniLM-L6-v2's tokenizer.json, cut down likewise; ids and decoded text by `tokenizers`.
spm.json      a SentencePiece BPE model with byte fallback, trained here; ids and decoded text by `sentencepiece`, ids
              checked against a plain Python merge by score that follows llama.cpp.
"""

import io
import json
import sys
from pathlib import Path

import regex
import sentencepiece
from gguf import GGUFReader
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

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
    "<|im_start|> is typed, so is </s> and [SEP] and <tool>",
    "\u0000\u0001\u007f\ufffd",
    "ﬁ ﬀ ª Å",
    "",
    " ",
    "x",
]

CORPUS = """
The porch of an old church is called its narthex; one passes through it before one enters the nave.
A language model reads tokens, not letters. Tokens are pieces of words, and words are split by rules.
When the rules differ by a little, the model still answers, but its answers are a little worse.
What is the capital of France? The capital of France is Paris. Where does the Vltava meet the Elbe?
def add(a, b):
    return a + b
for (int i = 0; i < 10; ++i) { total += values[i]; }
Numbers such as 12, 345 and 6789 are split into digits by some models and into groups by others.
Tokens, tokens, tokens: the tokenizer's work is never done, and it isn't thanked for it.
"""


def whole(field):
    return field.contents()


# --- byte-level BPE -----------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def letters():
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


LETTERS = letters()


def words(text):
    """The rule `smollm`: every digit alone, then GPT-2's words."""
    for part in regex.split(r"(\p{N})", text):
        if part:
            for word in regex.findall(GPT2, part):
                yield "".join(LETTERS[byte] for byte in word.encode())


def merge(word, ranks):
    parts = list(word)
    while True:
        pairs = [(ranks.get(pair, 1 << 30), at) for at, pair in enumerate(zip(parts, parts[1:]))]
        rank, at = min(pairs, default=(1 << 30, 0))
        if rank == 1 << 30:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def smollm(path):
    fields = GGUFReader(path).fields
    tokens = whole(fields["tokenizer.ggml.tokens"])
    types = whole(fields["tokenizer.ggml.token_type"])
    merges = [tuple(m.split(" ")) for m in whole(fields["tokenizer.ggml.merges"])]
    template = whole(fields["tokenizer.chat_template"])
    ids = {token: id for id, token in enumerate(tokens)}
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    reference = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers takes no notice of `tokenizer.ggml.pre`; this is what the publisher's tokenizer.json says.
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)

    cases = []
    for text in CASES + CORPUS.strip().splitlines():
        found = [ids[part] for word in words(text) for part in merge(word, ranks)]
        expected = reference(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert found == expected, (text, found, expected)
        cases.append({"text": text, "ids": found})

    chats = []
    for turns in [
        [("user", "What is the capital of France?")],
        [("system", "Be brief."), ("user", "  Hi! \n"), ("assistant", "Hello."), ("user", "1 + 1 =")],
    ]:
        messages = [{"role": role, "content": content} for role, content in turns]
        options = {"chat_template": template, "add_generation_prompt": True}
        text = reference.apply_chat_template(messages, tokenize=False, **options)
        found = reference(text, add_special_tokens=False)["input_ids"]
        chats.append({"messages": messages, "text": text, "ids": found})

    used = [word for text in CASES + CORPUS.strip().splitlines() for word in words(text)]
    used += [word for chat in chats for word in words(chat["text"])]
    inside = {word[a:b] for word in used for a in range(len(word)) for b in range(a + 1, min(len(word), a + 40) + 1)}
    kept_merges = [pair for pair in merges if "".join(pair) in inside]
    made = {"".join(pair) for pair in kept_merges}
    kept = [id for id, token in enumerate(tokens) if types[id] != 1 or len(token) == 1 or token in made]
    return {
        "model": "gpt2",
        "pre": whole(fields["tokenizer.ggml.pre"]),
        "tokens": [tokens[id] for id in kept],
        "types": [types[id] for id in kept],
        "merges": [" ".join(pair) for pair in kept_merges],
        "original_ids": kept,
        "template": template,
        "cases": cases,
        "chats": chats,
    }


# --- WordPiece ----------------------------------------------------------------------------------------------------


def minilm(folder):
    whole = json.loads((folder / "tokenizer.json").read_text())
    plain = json.loads(json.dumps(whole))
    plain["truncation"] = plain["padding"] = None
    reference = Tokenizer.from_str(json.dumps(plain))
    reference.encode_special_tokens = True
    cases = []
    for text in CASES + CORPUS.strip().splitlines():
        ids = reference.encode(text).ids
        cases.append({"text": text, "ids": ids, "decoded": reference.decode(ids)})
    normal = [reference.normalizer.normalize_str(case["text"]) for case in cases]
    used = [word for text in normal for word, _ in reference.pre_tokenizer.pre_tokenize_str(text)]
    inside = {word[a:b] for word in used for a in range(len(word)) for b in range(a + 1, len(word) + 1)}
    vocab = whole["model"]["vocab"]
    special = {token["content"] for token in whole["added_tokens"]}
    keep = lambda token: token in special or token.removeprefix("##") in inside
    whole["model"]["vocab"] = {token: id for token, id in vocab.items() if keep(token)}
    return {"tokenizer": whole, "cases": cases}


# --- SentencePiece BPE --------------------------------------------------------------------------------------------


def merge_by_score(text, scores, ids):
    """llama.cpp's `llm_tokenizer_spm`: the best-scored pair first, the leftmost of equals; then bytes."""
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(-scores[a + b], at) for at, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in scores]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    for part in parts:
        if part in scores:
            yield ids[part]
        else:
            yield from (ids[f"<0x{byte:02X}>"] for byte in part.encode())


def spm():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.strip().splitlines() * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<tool>"],
        character_coverage=1.0,
        minloglevel=2,
    )
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [reference.id_to_piece(id) for id in range(len(reference))]
    scores = [reference.get_score(id) for id in range(len(reference))]

    def kind(id):
        if reference.is_unknown(id):
            return 2
        if reference.is_control(id):
            return 3
        if reference.is_byte(id):
            return 6
        return 4 if tokens[id] == "<tool>" else 1

    types = [kind(id) for id in range(len(reference))]
    ids = {token: id for id, token in enumerate(tokens)}
    plain = {token: scores[id] for id, token in enumerate(tokens) if types[id] == 1}
    cases = []
    for text in CASES + CORPUS.strip().splitlines():
        if "<tool>" in text or "\0" in text:
            continue
        found = reference.encode(text)
        assert found == list(merge_by_score(text, plain, ids)), text
        cases.append({"text": text, "ids": found, "decoded": reference.decode(found)})
    return {"model": "llama", "tokens": tokens, "scores": scores, "types": types, "merges": [], "cases": cases}


def main():
    gguf, folder, out = map(Path, sys.argv[1:])
    for name, fixture in [("smollm", smollm(gguf)), ("minilm", minilm(folder)), ("spm", spm())]:
        (out / f"{name}.json").write_text(json.dumps(fixture, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
