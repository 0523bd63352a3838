"""Writes expected.json: weights rounded by GPTQ, as the paper describes it (Frantar et al. 2022, arXiv:2210.17323).

    pip install numpy==2.4.6
    python3 crates/compile/tests/goldens/gptq/make.py

The inverse of the Hessian and its Cholesky factor are computed directly, and every error reaches all later columns at
once, without panels. Scales and zero points are those of static groups: each block's own range, in the order of storage.
"""

import json
import pathlib

import numpy as np

ROWS, CHANNELS, TOKENS, BLOCK, DAMPING = 5, 40, 24, 16, 0.01


def grids(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scale, a half, and the zero point of each block."""
    blocks = [weight[:, start : start + BLOCK] for start in range(0, CHANNELS, BLOCK)]
    low = np.stack([np.minimum(block.min(1), 0) for block in blocks], 1)
    high = np.stack([np.maximum(block.max(1), 0) for block in blocks], 1)
    scales = ((high - low) / 15).astype(np.float16).astype(np.float64)
    return scales, np.clip(np.rint(-low / scales), 0, 15)


def gptq(weight: np.ndarray, moments: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Returns the integers of a weight."""
    order = np.argsort(-np.diag(moments), kind="stable")
    damped = moments + DAMPING * np.diag(moments).mean() * np.eye(CHANNELS)
    upper = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    rest = weight[:, order].copy()
    quants = np.zeros(weight.shape, dtype=int)
    for step, column in enumerate(order):
        scale, zero = scales[:, column // BLOCK], zeros[:, column // BLOCK]
        quants[:, column] = np.clip(np.rint(rest[:, step] / scale + zero), 0, 15)
        error = (rest[:, step] - (quants[:, column] - zero) * scale) / upper[step, step]
        rest[:, step:] -= np.outer(error, upper[step, step:])
    return quants


def main() -> None:
    random = np.random.default_rng(7)
    # Fewer tokens than channels, which are correlated; one channel is always 0.
    mixing = random.normal(size=(12, CHANNELS)) * np.linspace(0.2, 3, CHANNELS)
    inputs = random.normal(size=(TOKENS, 12)) @ mixing + 0.1 * random.normal(size=(TOKENS, CHANNELS))
    inputs[:, 21] = 0
    moments = (inputs.T @ inputs).astype(np.float32).astype(np.float64)
    weight = random.normal(size=(ROWS, CHANNELS)).astype(np.float32).astype(np.float64)
    scales, zeros = grids(weight)
    quants = gptq(weight, moments, scales, zeros)
    expand = lambda blocks: np.repeat(blocks, BLOCK, 1)[:, :CHANNELS]
    nearest = np.clip(np.rint(weight / expand(scales) + expand(zeros)), 0, 15)

    def errors(integers: np.ndarray) -> list[float]:
        difference = weight - (integers - expand(zeros)) * expand(scales)
        damped = moments + DAMPING * np.diag(moments).mean() * np.eye(CHANNELS)
        return np.einsum("rc,cd,rd->r", difference, damped, difference).tolist()

    expected = {
        "channels": CHANNELS,
        "block": BLOCK,
        "moments": moments.ravel().tolist(),
        "weight": weight.ravel().tolist(),
        "scales": scales.ravel().tolist(),
        "zeros": zeros.astype(int).ravel().tolist(),
        "quants": quants.ravel().tolist(),
        "errors": errors(quants),
        "errors_of_nearest": errors(nearest),
    }
    path = pathlib.Path(__file__).with_name("expected.json")
    path.write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
