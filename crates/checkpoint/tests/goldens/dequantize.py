"""Records dequantize.txt: random blocks of every format and what the `gguf` package decodes them to.

Run: python crates/checkpoint/tests/goldens/dequantize.py   (needs gguf and numpy)
"""

import importlib.metadata
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize

# Byte offsets of the f16 numbers in a block; random bytes there would often be infinite or NaN.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
TYPES = ["F32", "F16", "BF16", *HALVES, "MXFP4"]
# A subnormal, a negative zero, extremes and ordinary scales.
SCALES = [0x0003, 0x8000, 0x7BFF, 0xFBFF, 0x2E66, 0xA419, 0x3C00, 0x1234]


def blocks(name, random):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if name == "MXFP4":
        data = random.integers(0, 256, (5, size), dtype=np.uint8)
        # Scales from the smallest on.
        data[:, 0] = [0, 1, 2, 120, 250]
        return kind, data.reshape(-1)
    if name not in HALVES:
        values = random.standard_normal(12).astype(np.float32)
        if name == "F32":
            return kind, values.view(np.uint8)
        bits = values.astype(np.float16).view(np.uint16) if name == "F16" else (values.view(np.uint32) >> 16)
        bits = np.concatenate([bits.astype(np.uint16), np.array([0x0001, 0x8000, 0x7F00 >> 1], np.uint16)])
        return kind, bits.view(np.uint8)
    count = 2 if elements == 256 else 4
    data = random.integers(0, 256, (count, size), dtype=np.uint8)
    for row in data:
        for at in HALVES[name]:
            row[at : at + 2] = np.array([SCALES[random.integers(len(SCALES))]], np.uint16).view(np.uint8)
    return kind, data.reshape(-1)


def main():
    random = np.random.default_rng(20)
    lines = [f"# dequantize.py, gguf {importlib.metadata.version('gguf')}"]
    for name in TYPES:
        kind, data = blocks(name, random)
        values = dequantize(data, kind).astype(np.float32)
        lines.append(f"{name} {data.tobytes().hex()} {values.tobytes().hex()}")
    pathlib.Path(__file__).with_name("dequantize.txt").write_text("\n".join(lines) + "\n")


main()
