#!/usr/bin/env python3
"""A bare ONNX Runtime loop over a compiled package: what Narthex costs is measured against it.

    python loop_onnxruntime.py PACKAGE --threads 2

Written as a careful user would: one session, the past bound to the memory of the present, everything bound once, and
nothing allocated between tokens. Also the graph that `perplexity.py` feeds.
"""

import json
import os
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy
import onnxruntime

import rounds

TYPES = {"f32": numpy.float32, "f16": numpy.float16}


class Table:
    """The package's token table, unpacked to f32 rows."""

    def __init__(self, package: Path, table: dict):
        shape, encoding = (table["rows"], table["cols"]), table["encoding"]
        if encoding["type"] == "plain":
            values = self._read(package, encoding["data"], TYPES[encoding["dtype"]])
            self.rows = values.reshape(shape).astype(numpy.float32)
            return
        quants = self._read(package, encoding["quants"], numpy.uint8).reshape(-1, encoding["block"])
        scales = self._read(package, encoding["scales"], numpy.float16).reshape(-1, 1)
        self.rows = ((quants.astype(numpy.float32) - 128) * scales.astype(numpy.float32)).reshape(shape)

    @staticmethod
    def _read(package: Path, place: dict, dtype) -> numpy.ndarray:
        count = place["length"] // numpy.dtype(dtype).itemsize
        return numpy.fromfile(package / place["file"], dtype, count, offset=place["offset"])


class Shape:
    """One binding: a number of new tokens and of rows of logits, over the loop's cache."""

    def __init__(self, loop: "Loop", tokens: int, rows: int):
        self.loop = loop
        self.embeds = numpy.zeros((1, tokens, loop.hidden), numpy.float32)
        self.lengths = numpy.zeros(1, numpy.int32)
        self.total = numpy.zeros((), numpy.int32)
        self.rows = numpy.arange(tokens - rows, tokens, dtype=numpy.int64)
        self.logits = numpy.zeros((rows, loop.vocab), numpy.float32)
        self.binding = loop.session.io_binding()
        for name, array in [
            ("embeds", self.embeds),
            ("seqlens_k", self.lengths),
            ("total_length", self.total),
            ("logits_rows", self.rows),
            *loop.past,
        ]:
            self._bind(self.binding.bind_input, name, array)
        for name, array in [("logits", self.logits), *loop.present]:
            self._bind(self.binding.bind_output, name, array)

    @staticmethod
    def _bind(bind, name: str, array: numpy.ndarray):
        bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self, tokens, past: int) -> numpy.ndarray:
        """Logits `[rows, vocab]` after `tokens`, which follow `past` earlier ones."""
        self.embeds[0] = self.loop.table.rows[tokens]
        self.total[...] = past + len(tokens)
        self.lengths[0] = past + len(tokens) - 1
        self.loop.session.run_with_iobinding(self.binding)
        return self.logits


class Loop:
    """A session and its cache of `capacity` tokens."""

    def __init__(self, package: Path, threads: int, capacity: int):
        manifest = json.loads((package / "manifest.json").read_text())
        architecture = manifest["architecture"]
        self.vocab, self.hidden = architecture["vocab"], architecture["hidden"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        graph = package / manifest["graphs"][0]["file"]
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self.table = Table(package, next(table for table in manifest["tables"] if table["role"] == "token"))
        self.past, self.present = [], []
        for index, layer in enumerate(manifest["graphs"][0]["kv"]):
            for part in ("key", "value"):
                memory = numpy.zeros((1, layer["heads"], capacity, layer["head_size"]), numpy.float32)
                self.past.append((f"past.{index}.{part}", memory))
                self.present.append((f"present.{index}.{part}", memory))


def main():
    options = rounds.arguments("the folder of a package", __doc__)
    capacity = options.prompt + options.decode
    loop, load_ms = rounds.timed_load(lambda: Loop(Path(options.model), options.threads, capacity))
    prefill, decode = Shape(loop, options.prompt, 1), Shape(loop, 1, 1)

    def once(number: int):
        tokens = rounds.prompt(options.prompt, number, loop.vocab)
        clock = rounds.Clock()
        token = int(prefill.run(tokens, 0)[0].argmax())
        clock.token()
        for past in range(options.prompt, options.prompt + options.decode - 1):
            token = int(decode.run([token], past)[0].argmax())
            clock.token()
        return clock.rates(options.prompt)

    rounds.measure(options, once, load_ms, {"onnxruntime": onnxruntime.__version__})


if __name__ == "__main__":
    main()
