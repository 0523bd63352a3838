#!/usr/bin/env python3
"""Embeds texts with all-MiniLM-L6-v2 in ONNX Runtime or OpenVINO, as sentence-transformers does.

    python embed.py onnxruntime fused.onnx tokenizer.json PLAN.json --threads 2
    python embed.py openvino standard.onnx tokenizer.json PLAN.json --threads 2 --precision f32
    python embed.py openvino full.xml tokenizer.json PLAN.json --threads 2

The plan has two sets of texts, `warmup` and `measured`. Each has texts that are embedded together (`batch`) and texts that
are embedded one by one (`single`). The texts of a batch are tokenized together, sorted by their number of tokens, and run
in groups of 32, each padded to its longest text. The times include the tokenizer. Prints one line of JSON: seconds, number
of tokens without padding, vectors in the order of the texts, and versions.
"""

import argparse
import json
import os
import time

GROUP = 32


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", choices=["onnxruntime", "openvino"])
    parser.add_argument("graph")
    parser.add_argument("tokenizer")
    parser.add_argument("plan")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", choices=["f32"], help="OpenVINO's precision instead of its default")
    return parser.parse_args()


OPTIONS = arguments()
# The tokenizer's threads are created at its import.
os.environ["RAYON_NUM_THREADS"] = str(OPTIONS.threads)
os.environ["TOKENIZERS_PARALLELISM"] = "true"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy
import tokenizers


def open_onnxruntime(options: argparse.Namespace):
    """Returns a function from token ids and mask to vectors, and versions."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(options.graph, settings, providers=["CPUExecutionProvider"])
    types = {value.name: numpy.int32 if "int32" in value.type else numpy.int64 for value in session.get_inputs()}

    def run(ids: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
        inputs = {"input_ids": ids, "attention_mask": mask}
        return session.run(None, {name: inputs[name].astype(types[name], copy=False) for name in types})[0]

    return run, {"onnxruntime": onnxruntime.__version__}


def open_openvino(options: argparse.Namespace):
    """Returns a function from token ids and mask to vectors, and versions with the precision in use."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
    if options.precision:
        settings["INFERENCE_PRECISION_HINT"] = options.precision
    core = openvino.Core()
    model = core.read_model(options.graph)
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()

    def run(ids: numpy.ndarray, mask: numpy.ndarray) -> numpy.ndarray:
        outputs = request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        return next(iter(outputs.values())).copy()

    precision = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    versions = {"openvino": openvino.__version__, "precision": precision}
    quantizer = ["nncf", "version"]
    if model.has_rt_info(quantizer):
        versions["nncf"] = model.get_rt_info(quantizer).astype(str)
    return run, versions


class Model:
    """A tokenizer and a runtime."""

    def __init__(self, run, tokenizer: tokenizers.Tokenizer):
        self.run, self.tokenizer = run, tokenizer

    def embed(self, texts: list[str]) -> tuple[numpy.ndarray, int]:
        """The vector of each text, and the number of tokens."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(ids)), key=lambda text: -len(ids[text]))
        vectors = None
        for start in range(0, len(order), GROUP):
            group = order[start : start + GROUP]
            length = len(ids[group[0]])
            tokens = numpy.zeros((len(group), length), numpy.int64)
            mask = numpy.zeros((len(group), length), numpy.int64)
            for row, text in enumerate(group):
                tokens[row, : len(ids[text])] = ids[text]
                mask[row, : len(ids[text])] = 1
            found = self.run(tokens, mask)
            if vectors is None:
                vectors = numpy.empty((len(texts), found.shape[1]), numpy.float32)
            vectors[group] = found
        return vectors, sum(map(len, ids))

    def measure(self, texts: dict[str, list[str]]) -> dict:
        time.sleep(0.1)
        begun = time.perf_counter()
        vectors, tokens = self.embed(texts["batch"])
        batch_seconds = time.perf_counter() - begun
        time.sleep(0.1)
        begun = time.perf_counter()
        singles = [self.embed([text])[0] for text in texts["single"]]
        single_seconds = time.perf_counter() - begun
        vectors = numpy.concatenate([vectors, *singles])
        return {
            "batch_seconds": batch_seconds,
            "batch_tokens": tokens,
            "single_seconds": single_seconds,
            "vectors": [[float(element) for element in vector] for vector in vectors],
        }


def main():
    tokenizer = tokenizers.Tokenizer.from_file(OPTIONS.tokenizer)
    # The published file cuts texts to 128 tokens and pads them to as many.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    run, versions = (open_onnxruntime if OPTIONS.runtime == "onnxruntime" else open_openvino)(OPTIONS)
    with open(OPTIONS.plan, encoding="utf-8") as file:
        plan = json.load(file)
    model = Model(run, tokenizer)
    model.measure(plan["warmup"])
    answer = model.measure(plan["measured"])
    print(json.dumps({**answer, "versions": {**versions, "tokenizers": tokenizers.__version__}}), flush=True)


if __name__ == "__main__":
    main()
