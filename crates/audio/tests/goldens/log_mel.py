"""What the feature extractor of transformers makes of generated samples.

    python log_mel.py > log_mel.json

Needs transformers and numpy; nothing of Narthex runs here. The test `golden` in `crates/audio/src/mel.rs` generates the
same samples. A signal is a chirp, a quiet tone and noise. Only some frames are written: those around the start, around
the end of the samples and at the end of the window.
"""

import json

from transformers import WhisperFeatureExtractor

from sounds import chirp

FRAMES = [0, 1, 2, 50, 98, 99, 100, 101, 102, 1500, 2998, 2999]


cases = []
for count in (16000, 480000):
    for bins in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bins)
        features = extractor(chirp(count, 0.001, 0.0002), sampling_rate=16000, return_tensors="np").input_features[0]
        assert features.shape == (bins, 3000)
        frames = [[round(float(value), 5) for value in features[:, frame]] for frame in FRAMES]
        cases.append({"samples": count, "bins": bins, "frames": frames})
print(json.dumps({"frames": FRAMES, "cases": cases}, separators=(",", ":")))
