#!/usr/bin/env python3
"""The perplexity of a compiled package over the very tokens and windows that llama-perplexity used.

    python perplexity.py PACKAGE LOGITS --threads 2

LOGITS is what `llama-perplexity --save-all-logits` wrote; only its tokens are read. As there, each window begins with
an empty cache and, where the model wants it, with BOS in place of its first token; the second half of it is predicted.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy
import onnxruntime
from loop_onnxruntime import Loop, Shape


def windows(path: Path) -> numpy.ndarray:
    """Tokens `[windows, length]`."""
    with path.open("rb") as file:
        magic, length, vocab, count = struct.unpack("<8s3i", file.read(20))
        if magic != b"_logits_" or not (0 < length <= 1 << 16 and 0 < count <= 1 << 16 and vocab > 0):
            raise SystemExit(f"{path}: expected what llama-perplexity --save-all-logits writes, found {magic!r}")
        return numpy.frombuffer(file.read(4 * length * count), "<i4").reshape(count, length)


def surprise(logits: numpy.ndarray, tokens: numpy.ndarray) -> numpy.ndarray:
    """The negative logarithm of each token's probability."""
    logits = logits.astype(numpy.float64)
    top = logits.max(axis=1)
    total = numpy.log(numpy.exp(logits - top[:, None]).sum(axis=1)) + top
    return total - logits[numpy.arange(len(tokens)), tokens]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("logits", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    every = windows(options.logits).copy()
    bos = json.loads((options.package / "manifest.json").read_text())["tokenizer"]["bos"]
    if bos is not None:
        every[:, 0] = bos
    length = every.shape[1]
    first = length // 2
    loop = Loop(options.package, options.threads, length)
    shape = Shape(loop, length, length - first)
    parts = [surprise(shape.run(window, 0)[:-1], window[first + 1 :]) for window in every]
    surprises = numpy.concatenate(parts)
    answer = {
        "perplexity": float(numpy.exp(surprises.mean())),
        "windows": len(every),
        "window_tokens": length,
        "predicted_tokens": len(surprises),
        "versions": {"onnxruntime": onnxruntime.__version__},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
