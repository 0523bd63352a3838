"""Writes expected.json: scales of channels by AWQ (Lin et al. 2023, arXiv:2306.00978) and SmoothQuant (Xiao et al. 2022,
arXiv:2211.10438), and what a layer loses with them.

    pip install numpy==2.4.6
    python3 crates/compile/tests/goldens/scaling/make.py

Weights are rounded to nearest, in blocks with the zero point and the scale of their range. Two layers read the same inputs. The
loss of a strength is the squared change of the outputs of each layer, relative to the square of its outputs.
"""

import json
import pathlib

import numpy as np

CHANNELS, TOKENS, BLOCK, LARGEST = 48, 24, 16, 64.0
ROWS = (6, 3)
STRENGTHS = [step / 20 for step in range(20)]


def centred(scales: np.ndarray) -> np.ndarray:
    valid = scales[np.isfinite(scales) & (scales > 0)]
    with np.errstate(invalid="ignore"):
        centred = np.clip(scales / np.sqrt(valid.min() * valid.max()), 1 / LARGEST, LARGEST)
    return np.where(np.isfinite(scales) & (scales > 0), centred, 1)


def rounded(weight: np.ndarray) -> np.ndarray:
    blocks = weight.reshape(len(weight), -1, BLOCK)
    low = np.minimum(blocks.min(2, keepdims=True), 0)
    high = np.maximum(blocks.max(2, keepdims=True), 0)
    scale = (high - low) / 15
    zero = np.clip(np.rint(-low / scale), 0, 15)
    return ((np.clip(np.rint(blocks / scale + zero), 0, 15) - zero) * scale).reshape(weight.shape)


def main() -> None:
    random = np.random.default_rng(11)
    sizes = np.exp(random.normal(size=CHANNELS))
    # Outliers, and a channel that is always 0.
    sizes[[5, 30]] *= 40
    sizes[17] = 0
    inputs = (random.normal(size=(TOKENS, CHANNELS)) * sizes).astype(np.float32).astype(np.float64)
    weights = [random.normal(size=(rows, CHANNELS)).astype(np.float32).astype(np.float64) for rows in ROWS]
    for weight in weights:
        weight[:, 9] = 0

    magnitudes = np.abs(inputs).mean(0)
    magnitudes = np.maximum(magnitudes, 1e-4 * magnitudes.max())
    candidates = [centred(magnitudes**strength) for strength in STRENGTHS]

    def loss(weight: np.ndarray, scales: np.ndarray) -> float:
        change = rounded(weight * scales) / scales - weight
        return (np.square(inputs @ change.T).sum() / np.square(inputs @ weight.T).sum()).item()

    losses = [sum(loss(weight, scales) for weight in weights) for scales in candidates]
    peaks = np.max([np.abs(weight).max(0) for weight in weights], 0)
    with np.errstate(divide="ignore"):
        smooth = centred(np.sqrt(np.abs(inputs).max(0) / peaks))

    expected = {
        "channels": CHANNELS,
        "block": BLOCK,
        "inputs": inputs.ravel().tolist(),
        "weights": [weight.ravel().tolist() for weight in weights],
        "candidates": [scales.tolist() for scales in candidates],
        "losses": losses,
        "best": int(np.argmin(losses)),
        "smooth": smooth.tolist(),
    }
    path = pathlib.Path(__file__).with_name("expected.json")
    path.write_text(json.dumps(expected) + "\n")
    print(expected["best"], losses[0], min(losses))


if __name__ == "__main__":
    main()
