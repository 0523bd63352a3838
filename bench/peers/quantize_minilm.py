#!/usr/bin/env python3
"""Quantises the graph of all-MiniLM-L6-v2 to int8 for OpenVINO, in the two ways that NNCF has.

    python quantize_minilm.py standard.onnx tokenizer.json TEXTS.json OUT

`OUT/full.xml` has weights and activations in int8. The ranges of its activations come from the texts, which must not be
those of a measurement. `OUT/weights.xml` has only its weights in int8. Both use NNCF's settings for transformers.
"""

import json
import os
import sys
from pathlib import Path

# NNCF sends no telemetry where this variable is set.
os.environ["NNCF_CI"] = "1"

import nncf
import numpy
import openvino
import tokenizers


def inputs(tokenizer: tokenizers.Tokenizer, text: str) -> dict[str, numpy.ndarray]:
    """The inputs of the graph for one text, without padding."""
    ids = numpy.array([tokenizer.encode(text).ids], numpy.int64)
    return {"input_ids": ids, "attention_mask": numpy.ones_like(ids)}


def quantize(graph: str, tokenizer: tokenizers.Tokenizer, texts: list[str], out: Path):
    core = openvino.Core()
    calibration = nncf.Dataset(texts, lambda text: inputs(tokenizer, text))
    full = nncf.quantize(
        core.read_model(graph), calibration, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts)
    )
    openvino.save_model(full, out / "full.xml", compress_to_fp16=False)
    weights = nncf.compress_weights(core.read_model(graph), mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(weights, out / "weights.xml", compress_to_fp16=False)


def main():
    graph, tokenizer, texts, out = sys.argv[1:]
    tokenizer = tokenizers.Tokenizer.from_file(tokenizer)
    # The published file cuts texts to 128 tokens and pads them to as many.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with open(texts, encoding="utf-8") as file:
        quantize(graph, tokenizer, json.load(file), Path(out))


if __name__ == "__main__":
    main()
