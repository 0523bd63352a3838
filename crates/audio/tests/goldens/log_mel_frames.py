"""What the feature extractor of Gemma 3n in transformers makes of generated samples.

    python log_mel_frames.py > log_mel_frames.json

Needs transformers and numpy; nothing of Narthex runs here. The test `golden` in `crates/audio/src/frames.rs` generates the
same samples: a chirp and noise. Only some frames are written.
"""

import json

from transformers import Gemma3nAudioFeatureExtractor

from sounds import chirp


def variants(bins):
    yield "published", {}
    yield "global", {"preemphasis_htk_flavor": False, "fft_overdrive": False}
    yield "none", {"preemphasis": 0.0, "input_scale_factor": 0.5}
    yield "normed", {"per_bin_mean": [bin / 10 for bin in range(bins)], "per_bin_stddev": [1 + bin / 10 for bin in range(bins)]}


cases = []
for count, bins in ((480000, 128), (16000, 16), (5000, 16)):
    for variant, settings in variants(bins):
        if count != 16000 and variant != "published":
            continue
        extractor = Gemma3nAudioFeatureExtractor(feature_size=bins, **settings)
        output = extractor(chirp(count, 0, 0.04), return_tensors="np")
        features, mask = output.input_features[0], output.input_features_mask[0]
        assert mask.all() and len(mask) == len(features)
        frames = [frame for frame in (0, 1, 28, 50, 1500, len(features) - 1) if frame < len(features)]
        rows = [[round(float(value), 5) for value in features[frame]] for frame in frames]
        cases.append({"samples": count, "bins": bins, "variant": variant, "count": len(features), "frames": frames,
                      "features": rows})
print(json.dumps(cases, separators=(",", ":")))
