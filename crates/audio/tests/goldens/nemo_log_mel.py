"""What the NumPy preprocessor of onnx-asr for NeMo models makes of generated samples. It transforms in double precision;
the ONNX preprocessor of the same package differs from it by up to the printed number.

    python nemo_log_mel.py > nemo_log_mel.json

Needs onnx-asr, onnxruntime and numpy; nothing of Narthex runs here. The test `golden` in `crates/audio/src/nemo.rs`
generates the same samples. Only some frames are written: those around the start, the middle and the end.
"""

import json
import sys

import numpy
from onnx_asr.preprocessors.numpy_preprocessor import NemoPreprocessorNumpy
from onnx_asr.preprocessors.preprocessor import OnnxPreprocessor

from sounds import chirp


cases = []
for count in (1600, 16000, 48100):
    for bins in (80, 128):
        sound = chirp(count, 0, 0.02)[None], numpy.array([count], dtype=numpy.int64)
        features, lengths = NemoPreprocessorNumpy(f"nemo{bins}")(*sound)
        single, _ = OnnxPreprocessor(f"nemo{bins}", {})(*sound)
        print(f"{count} samples, {bins} bins:", abs(features - single).max(), file=sys.stderr)
        total = features.shape[2]
        chosen = sorted({0, 1, 2, total // 2, total - 3, total - 2, total - 1})
        written = [[round(float(value), 5) for value in features[0, :, frame]] for frame in chosen]
        cases.append({"samples": count, "bins": bins, "count": total, "sounding": int(lengths[0]),
                      "frames": chosen, "features": written})
print(json.dumps(cases, separators=(",", ":")))
