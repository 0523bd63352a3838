"""What the NumPy preprocessor of onnx-asr for NeMo models makes of generated samples. It transforms in double precision;
the ONNX preprocessor of the same package differs from it by up to the printed number.

    python nemo_log_mel.py > nemo_log_mel.json

Needs onnx-asr, onnxruntime and numpy; nothing of Narthex runs here. The test `golden` in `crates/audio/src/nemo.rs`
generates the same samples. Only some frames are written: those around the start, the middle and the end.
"""

import json
import math
import sys

import numpy
from onnx_asr.preprocessors.numpy_preprocessor import NemoPreprocessorNumpy
from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor


def samples(count):
    state = 1
    values = []
    for at in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        seconds = at / 16000
        chirp = 0.5 * math.sin(2 * math.pi * (100 + 1800 * (seconds % 2)) * (seconds % 2))
        noise = (state / 2**32 - 0.5) * 0.02
        values.append(chirp + noise)
    return numpy.array(values, dtype=numpy.float32)


cases = []
for count in (1600, 16000, 48100):
    for bins in (80, 128):
        sound = samples(count)[None], numpy.array([count], dtype=numpy.int64)
        features, lengths = NemoPreprocessorNumpy(f"nemo{bins}")(*sound)
        single, _ = OnnxPreprocessor(f"nemo{bins}", {})(*sound)
        print(f"{count} samples, {bins} bins:", abs(features - single).max(), file=sys.stderr)
        total = features.shape[2]
        chosen = sorted({0, 1, 2, total // 2, total - 3, total - 2, total - 1})
        written = [[round(float(value), 5) for value in features[0, :, frame]] for frame in chosen]
        cases.append({"samples": count, "bins": bins, "count": total, "sounding": int(lengths[0]),
                      "frames": chosen, "features": written})
print(json.dumps(cases, separators=(",", ":")))
