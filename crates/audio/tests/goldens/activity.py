"""Speech in sounds, from probabilities of frames, as silero-vad 6.2.3 finds it.

    python activity.py > activity.json

Only pauses of at least twice the padding have goldens: Silero divides shorter ones in their middle, which leaves nothing out.
"""

import ast
import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import List


def reference():
    """The function alone, because the package needs torchaudio."""
    source = (Path(find_spec("silero_vad").submodule_search_locations[0]) / "utils_vad.py").read_text()
    name = "get_speech_timestamps_from_probs"
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name)
    names = {"List": List}
    exec(ast.unparse(body), names)
    return names[name]


def probabilities(seed):
    """Speech and pauses of random lengths, with doubtful frames among them."""
    rng = random.Random(seed)
    found = []
    while len(found) < 900:
        level = rng.choice([0.02, 0.95])
        for _ in range(rng.choice([2, 10, 40, 90, 150])):
            found.append(round(min(max(rng.gauss(level, 0.05), 0.0), 1.0) if rng.random() > 0.01 else rng.random(), 3))
    return found


find = reference()
cases = []
for seed, (threshold, pause, padding) in enumerate([(0.5, 2000, 400), (0.5, 700, 300), (0.3, 1000, 0), (0.8, 100, 50)]):
    values = probabilities(seed)
    length = 512 * len(values) - 100 * seed
    speech = find(values, threshold=threshold, min_speech_duration_ms=0, min_silence_duration_ms=pause,
                  speech_pad_ms=padding, audio_length_samples=length)
    cases.append({"threshold": threshold, "pause_ms": pause, "padding_ms": padding, "probabilities": values,
                  "length": length, "speech": [[part["start"], part["end"]] for part in speech]})
json.dump(cases, sys.stdout)
print()
