"""Loads an export of Narthex in onnxruntime-genai, and compares what both write.

    cargo xtask genai    # all of it, over a model of the catalogue
    pip install onnxruntime-genai==0.18.0 tokenizers==0.23.3
    python conformance/export/genai.py MODEL EXPORT PROMPT [TOKENS]

MODEL is installed in the store of NARTHEX_HOME, EXPORT was made by `narthex export MODEL --format genai EXPORT`. Both complete
the same prompt greedily: Narthex over its own API, onnxruntime-genai from the folder. The program is NARTHEX, or else
target/debug/narthex. Ends with 1 where the texts differ.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import onnxruntime_genai as genai
from tokenizers import Tokenizer


def narthex(model, prompt, tokens):
    program = os.environ.get("NARTHEX", "target/debug/narthex")
    command = [program, "serve", "--port", "0", "--model", model, "--providers", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                break
        body = dict(model=model, prompt=prompt, max_tokens=tokens, temperature=0)
        request = urllib.request.Request(found.group() + "/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer = json.load(answer)
        return answer["choices"][0]["text"], answer["usage"]
    finally:
        server.terminate()
        server.wait()


def other(folder, prompt, tokens):
    model = genai.Model(str(folder))
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    given = read.encode(prompt, add_special_tokens=False).ids
    own = list(genai.Tokenizer(model).encode(prompt))
    if own != given:
        print(f"  note: onnxruntime-genai's own tokenizer gives {own}, the reference {given}")
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(given) + tokens, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(given)
    while not generator.is_done():
        generator.generate_next_token()
    written = [int(token) for token in generator.get_sequence(0)[len(given):]]
    stop = json.loads((folder / "genai_config.json").read_text())["model"]["eos_token_id"]
    # Narthex does not show special tokens.
    return read.decode([token for token in written if token not in stop], skip_special_tokens=True), len(written)


def main(model, folder, prompt, tokens=48):
    ours, usage = narthex(model, prompt, int(tokens))
    theirs, count = other(pathlib.Path(folder), prompt, int(tokens))
    print(f"{model}: onnxruntime-genai {genai.__version__}, {usage['prompt_tokens']} tokens read, {count} written")
    print(f"  Narthex:           {ours!r}\n  onnxruntime-genai: {theirs!r}")
    print("  the same" if ours == theirs else "  DIFFERENT")
    return 0 if ours == theirs else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
