"""Records the samples that the Python of hibari-tts makes of a made spectrum, for the tests of crates/speech.

    python3 -m venv /tmp/hibari && /tmp/hibari/bin/pip install hibari-tts==0.2.1 onnxruntime scipy
    /tmp/hibari/bin/python conformance/speech/vocoder.py

The spectrum and the noise are those of `crates/speech/src/vocoder/tests.rs` and `lanes.rs`. Writes every 13th sample to
crates/speech/tests/goldens/vocoder.txt.
"""

import pathlib

import numpy as np
from hibari import dsp

BINS, FRAMES, SEED = 601, 37, 11
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "crates/speech/tests/goldens/vocoder.txt"


def mixed(seed, place):
    """SplitMix64 at a place of its sequence."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + (place.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def part(seed, scale, offset):
    value = (mixed(seed, np.arange(BINS * FRAMES)) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return ((value - np.float32(0.5)) * np.float32(scale) + np.float32(offset)).reshape(BINS, FRAMES)


class Noise:
    """The noise of `lanes.rs` in place of numpy's generator."""

    def standard_normal(self, shape, dtype):
        bins, frames = np.meshgrid(np.arange(BINS), np.arange(FRAMES), indexing="ij")
        random = mixed(SEED, (frames * BINS + bins))
        radius = ((random >> np.uint64(40)).astype(np.float64) + 1) / (1 << 24)
        angle = ((random >> np.uint64(16)) & np.uint64(0xFFFFFF)).astype(np.float64) / (1 << 24)
        noise = np.sqrt(-2 * np.log(radius)) * np.exp(1j * (angle - 0.5) * 2 * np.pi)
        noise = np.ascontiguousarray(noise.astype(np.complex64)).view(np.float32)
        assert noise.shape == shape and noise.dtype == dtype
        return noise


def main():
    pitch = np.array([0.0 if f % 7 == 3 else 120.0 + 3.0 * f for f in range(FRAMES)], np.float32)
    parts = [part(1, 4, -2), part(2, 6, 0), part(3, 4, -4), part(4, 4, -3), part(5, 40, 0)]
    samples = dsp.synth(*parts, pitch, Noise())
    GOLDEN.write_text("".join(f"{sample:.9g}\n" for sample in samples[::13]))


main()
