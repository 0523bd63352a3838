"""What transformers' processors make of pictures and sounds in a prompt.

    python media.py TEMPLATES OUT.json

renders conversations with the chat templates of SmolVLM and Gemma 3, replaces each placeholder as their processors do,
and tokenizes the result with a tiny BPE tokenizer. Writes the tokenizer, and for each case the messages, the parts of
each medium and the tokens. Needs transformers, tokenizers and jinja2; nothing of Narthex runs here.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
from transformers.utils import chat_template_utils as reference

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
ADDED = [
    "<unk>", "<s>", "</s>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<image>",
    *[f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)],
    "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>",
    "<start_of_audio>", "<end_of_audio>", "<audio_soft_token>",
]
TEXT = "What is in the picture?\n\nA cat and a dog.\n\n\nUser: Compare them:\nAssistant: \n\nuser\nmodel\n" * 20

GEMMA3N = """{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' }}\
{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for item in message['content'] %}\
{% if item['type'] == 'audio' %}{{ '<audio_soft_token>' }}{% elif item['type'] == 'image' %}{{ '<image_soft_token>' }}\
{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{ '<end_of_turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""


def tokenizer():
    found = Tokenizer(models.BPE(unk_token="<unk>"))
    # Line breaks join across parts of a text, so that it matters what stands around a placeholder.
    found.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in ADDED],
    )
    found.train_from_iterator([TEXT], trainer)
    return found


def said(role, *parts):
    return {"role": role, "content": list(parts)}


def text(text):
    return {"type": "text", "text": text}


def smolvlm(rows, columns):
    """A picture that is divided into tiles, with three rows of embeddings each."""
    whole = get_image_prompt_string(rows, columns, 3, "<fake_token_around_image>", "<image>", "<global-img>")
    return "image", "<image>", whole


def gemma(kind, placeholder, count):
    """The formulas of Gemma3Processor and Gemma3nProcessor."""
    return kind, placeholder, f"\n\n<start_of_{kind}>" + f"<{kind}_soft_token>" * count + f"<end_of_{kind}>\n\n"


IMAGE, AUDIO = {"type": "image"}, {"type": "audio"}
ONE = [said("user", IMAGE, text("What is in the picture?"))]
MANY = [
    said("user", text("Compare them:\n"), IMAGE, text("\n\nand\n\n"), IMAGE),
    said("assistant", text("A cat and a dog.")),
    said("user", IMAGE, IMAGE, text(" And these?")),
]
MIXED = [said("user", AUDIO, text("What is it?"), IMAGE), said("assistant", text("A cat.")), said("user", IMAGE, AUDIO)]
CASES = [
    ("smolvlm", ONE, [smolvlm(0, 0)]),
    ("smolvlm", ONE, [smolvlm(2, 2)]),
    ("smolvlm", MANY, [smolvlm(0, 0), smolvlm(1, 2), smolvlm(2, 1), smolvlm(0, 0)]),
    ("gemma3", ONE, [gemma("image", "<start_of_image>", 4)]),
    ("gemma3", MANY, [gemma("image", "<start_of_image>", 4)] * 4),
    ("gemma3n", MIXED, [gemma("audio", "<audio_soft_token>", 5), gemma("image", "<image_soft_token>", 4),
                        gemma("image", "<image_soft_token>", 4), gemma("audio", "<audio_soft_token>", 2)]),
]
SOFT = {"<image>": "<image>", "<start_of_image>": "<image_soft_token>", "<image_soft_token>": "<image_soft_token>",
        "<audio_soft_token>": "<audio_soft_token>"}


def spans(whole, soft):
    """Divides the text of a medium into texts and numbers of rows."""
    found = []
    while whole:
        before, token, rest = whole.partition(soft)
        if before:
            found.append(before)
        count = 1 if token else 0
        while rest.startswith(soft):
            count, rest = count + 1, rest[len(soft):]
        if count:
            found.append(count)
        whole = rest
    return found


def main():
    folder = Path(sys.argv[1])
    tokens = tokenizer()
    cases = []
    for name, messages, media in CASES:
        source = GEMMA3N if name == "gemma3n" else (folder / f"{name}.jinja").read_text()
        template = reference._compile_jinja_template(source)
        prompt = template.render(messages=messages, add_generation_prompt=True, tools=None, **SPECIALS)
        expanded, rest = "", prompt
        for kind, placeholder, whole in media:
            before, found, rest = rest.partition(placeholder)
            assert found, (name, prompt)
            expanded += before + whole
        expanded += rest
        cases.append({
            "template": source, "messages": messages, "ids": tokens.encode(expanded).ids,
            "media": [{"kind": kind, "placeholder": placeholder, "token": SOFT[placeholder],
                       "spans": spans(whole, SOFT[placeholder])} for kind, placeholder, whole in media],
        })
    found = {"tokenizer": json.loads(tokens.to_str()), "cases": cases}
    Path(sys.argv[2]).write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
