#!/usr/bin/env python3
"""onnxruntime-genai's own loop, over the folder that `export_genai.py` writes.

    python loop_genai.py FOLDER --threads 2
"""

import json
import os
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai
import rounds


def main():
    options = rounds.arguments("a folder with genai_config.json", __doc__)
    vocab = json.loads((Path(options.model) / "genai_config.json").read_text())["model"]["vocab_size"]
    config = onnxruntime_genai.Config(options.model)
    session = {"intra_op_num_threads": options.threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    model, load_ms = rounds.timed_load(lambda: onnxruntime_genai.Model(config))
    length = options.prompt + options.decode

    def once(number: int):
        params = onnxruntime_genai.GeneratorParams(model)
        # At the least length no stop token ends the answer early.
        params.set_search_options(do_sample=False, max_length=length, min_length=length)
        generator = onnxruntime_genai.Generator(model, params)
        tokens = rounds.prompt(options.prompt, number, vocab)
        clock = rounds.Clock()
        generator.append_tokens(tokens)
        for _ in range(options.decode):
            generator.generate_next_token()
            clock.token()
        return clock.rates(options.prompt)

    rounds.measure(options, once, load_ms, {"onnxruntime-genai": onnxruntime_genai.__version__})


if __name__ == "__main__":
    main()
