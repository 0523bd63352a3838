"""The generated samples of the scripts in this folder, which are those of `crates/audio/src/test_sounds.rs`."""

import math

import numpy


def chirp(count, tone, noise):
    """Returns samples with 16,000 Hz: a chirp, a tone of 6,500 Hz with an amplitude, and noise of a width."""
    state = 1
    values = []
    for at in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        seconds = at / 16000
        value = 0.5 * math.sin(2 * math.pi * (100 + 1800 * (seconds % 2)) * (seconds % 2))
        value += tone * math.sin(2 * math.pi * 6500 * seconds)
        values.append(value + (state / 2**32 - 0.5) * noise)
    return numpy.array(values, dtype=numpy.float32)
