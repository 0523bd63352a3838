"""Probabilities of speech in a synthesised sound, as silero-vad 6.2.3 computes them.

    python speech_detector.py > speech_detector.json
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy

RATE = 16_000
package = Path(find_spec("silero_vad").submodule_search_locations[0])


def sound(seconds):
    """Overtones of a pitch that glides, with formants and syllables, between silence."""
    time = numpy.arange(seconds * RATE) / RATE
    pitch = 2 * numpy.pi * (140 * time - 20 / 3 * numpy.cos(3 * time))
    voice = numpy.zeros_like(time)
    for overtone in range(1, 25):
        weight = sum(numpy.exp(-(((140 * overtone - formant) / width) ** 2)) for formant, width in [(700, 250), (1200, 300), (2600, 400)])
        voice += (0.2 + weight) * numpy.sin(overtone * pitch) / 8
    syllables = numpy.clip(numpy.sin(2 * numpy.pi * 2 * time), 0, None)
    return (voice * syllables * (numpy.floor(time) % 3 != 0)).astype(numpy.float32)


# The module alone, because the package needs torchaudio.
source = (package / "sequence_vad.py").read_text().replace("from .utils_vad import get_speech_timestamps_from_probs", "")
names = {}
exec(source, names)
model = names["SileroVADSequence"](str(package / "data/silero_vad_16k_sequence.onnx"))
found = model.audio_forward(sound(6)[:-100])
json.dump([round(float(value), 5) for value in found], sys.stdout)
print()
