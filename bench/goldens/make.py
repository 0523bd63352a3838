#!/usr/bin/env python3
"""Records what independent implementations give for `prompts.json` and `texts.json`.

    python make.py decoder SmolLM2-135M-Instruct.Q4_1.gguf    writes decoder.bin
    python make.py encoder all-MiniLM-L6-v2-FOLDER            writes encoder.bin

Needs torch, transformers, gguf and sentence-transformers. README.md describes the files and names the versions that
wrote the committed ones. Nothing here is run by a test; the tests read what it wrote.
"""

import argparse
import io
import json
import os
import struct
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import transformers

HERE = Path(__file__).resolve().parent
TOKENS = 32  # answer tokens of a prompt
TOP = 64  # the largest logits kept of a position
STRIDED = 128  # logits kept at fixed ids


def read_tokenizer(gguf: Path):
    """The tokenizer and the chat template of the GGUF file.

    The published tokenizer splits digits before byte-level BPE (`tokenizer.ggml.pre` = "smollm"), which the loader of
    transformers does not know; without it, numbers would be merged.
    """
    from tokenizers import pre_tokenizers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    return tokenizer


def prompt_tokens(tokenizer, text: str) -> list[int]:
    """One user message through the model's own chat template, up to where the assistant begins."""
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(rendered, add_special_tokens=False)["input_ids"]


def answer(model, prompt: list[int], stops: set[int]) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens, and the logits `[TOKENS, vocab]` that chose them, from one pass over prompt and answer."""
    tokens, past = [], None
    feed = torch.tensor([prompt])
    for _ in range(TOKENS):
        out = model(feed, past_key_values=past, use_cache=True)
        past = out.past_key_values
        tokens.append(int(out.logits[0, -1].argmax()))
        feed = torch.tensor([[tokens[-1]]])
    if stops.intersection(tokens):
        raise SystemExit(f"the answer ends within {TOKENS} tokens; ask for more: {tokens}")
    logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    if logits.argmax(-1).tolist() != tokens:
        raise SystemExit("a pass over the whole text chooses other tokens than one by one; change the prompt")
    return tokens, logits


def record_decoder(gguf: Path) -> None:
    tokenizer = read_tokenizer(gguf)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    stops = {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}
    prompts = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
    vocab = model.config.vocab_size
    strided = numpy.arange(STRIDED) * vocab // STRIDED
    out = io.BytesIO()
    with torch.no_grad():
        out.write(b"NXDEC\0\0\1" + struct.pack("<5I", len(prompts), TOKENS, vocab, TOP, STRIDED))
        out.write(strided.astype("<u4").tobytes())
        for text in prompts:
            prompt = prompt_tokens(tokenizer, text)
            tokens, logits = answer(model, prompt, stops)
            out.write(struct.pack("<I", len(prompt)))
            out.write(numpy.array(prompt + tokens, "<u4").tobytes())
            for row in logits:
                top = row.topk(TOP)
                out.write(struct.pack("<f", float(row.double().logsumexp(-1))))
                out.write(top.indices.numpy().astype("<u4").tobytes())
                out.write(top.values.numpy().astype("<f4").tobytes())
                out.write(row.numpy()[strided].astype("<f4").tobytes())
            print(f"{len(prompt):4} {tokenizer.decode(tokens)!r}")
    (HERE / "decoder.bin").write_bytes(out.getvalue())


def record_encoder(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    texts = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    if max(lengths) > model.max_seq_length:
        raise SystemExit(f"a text has {max(lengths)} tokens, and the model cuts at {model.max_seq_length}")
    # One text at a time: the reference has no padding.
    vectors = model.encode(texts, batch_size=1, convert_to_numpy=True).astype("<f4")
    with open(HERE / "encoder.bin", "wb") as out:
        out.write(b"NXENC\0\0\1" + struct.pack("<2I", *vectors.shape) + vectors.tobytes())
    print(f"{vectors.shape[0]} texts of {min(lengths)} to {max(lengths)} tokens, width {vectors.shape[1]}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("which", choices=["decoder", "encoder"])
    arguments.add_argument("checkpoint", type=Path)
    given = arguments.parse_args()
    record = record_decoder if given.which == "decoder" else record_encoder
    record(given.checkpoint)
    print("torch", torch.__version__, "transformers", transformers.__version__)


if __name__ == "__main__":
    main()
