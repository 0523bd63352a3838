"""What the feature extractor of transformers makes of generated samples.

    python log_mel.py > log_mel.json

Needs transformers and numpy; nothing of Narthex runs here. The test `golden` in `crates/audio/src/mel.rs` generates the
same samples. A signal is a chirp, a quiet tone and noise. Only some frames are written: those around the start, around
the end of the samples and at the end of the window.
"""

import json
import math

import numpy
from transformers import WhisperFeatureExtractor

FRAMES = [0, 1, 2, 50, 98, 99, 100, 101, 102, 1500, 2998, 2999]


def samples(count):
    state = 1
    values = []
    for at in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        seconds = at / 16000
        chirp = 0.5 * math.sin(2 * math.pi * (100 + 1800 * (seconds % 2)) * (seconds % 2))
        tone = 0.001 * math.sin(2 * math.pi * 6500 * seconds)
        noise = (state / 2**32 - 0.5) * 0.0002
        values.append(chirp + tone + noise)
    return numpy.array(values, dtype=numpy.float32)


cases = []
for count in (16000, 480000):
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        features = extractor(samples(count), sampling_rate=16000, return_tensors="np").input_features[0]
        assert features.shape == (bins, 3000)
        frames = [[round(float(value), 5) for value in features[:, frame]] for frame in FRAMES]
        cases.append({"samples": count, "bins": bins, "frames": frames})
print(json.dumps({"frames": FRAMES, "cases": cases}, separators=(",", ":")))
