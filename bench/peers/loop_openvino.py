#!/usr/bin/env python3
"""OpenVINO GenAI's own loop, over a folder that it wrote itself when it read the checkpoint (`--read`).

    python loop_openvino.py CHECKPOINT.gguf --read
    python loop_openvino.py FOLDER --threads 2
"""

import sys

import numpy
import openvino
import openvino_genai
import rounds

VOCAB = 49152


def read(checkpoint: str):
    """Converts a GGUF file; what comes of it lies beside the file, so that a later start is quick."""
    openvino_genai.LLMPipeline(checkpoint, "CPU", enable_save_ov_model=True)


def main():
    options = rounds.arguments("a folder with openvino_model.xml", __doc__)
    pipeline, load_ms = rounds.timed_load(
        lambda: openvino_genai.LLMPipeline(options.model, "CPU", INFERENCE_NUM_THREADS=options.threads)
    )
    generation = openvino_genai.GenerationConfig()
    generation.max_new_tokens = generation.min_new_tokens = options.decode
    generation.ignore_eos = True
    generation.do_sample = False

    def once(number: int):
        tokens = numpy.array([rounds.prompt(options.prompt, number, VOCAB)], numpy.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(numpy.ones_like(tokens)))
        metrics = pipeline.generate(inputs, generation).perf_metrics
        if metrics.get_num_generated_tokens() != options.decode:
            sys.exit(f"expected {options.decode} tokens, found {metrics.get_num_generated_tokens()}")
        # Both are in milliseconds; the second is the mean over the tokens after the first.
        return options.prompt * 1e3 / metrics.get_ttft().mean, 1e3 / metrics.get_tpot().mean

    versions = {"openvino": openvino.__version__, "openvino-genai": openvino_genai.__version__}
    rounds.measure(options, once, load_ms, versions)


if __name__ == "__main__":
    if sys.argv[2:] == ["--read"]:
        read(sys.argv[1])
    else:
        main()
