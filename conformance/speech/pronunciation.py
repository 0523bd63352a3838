"""Records what the Python of hibari-tts pronounces, for the tests of crates/speech.

    python3 -m venv /tmp/hibari && /tmp/hibari/bin/pip install hibari-tts==0.2.1 onnxruntime
    /tmp/hibari/bin/python conformance/speech/pronunciation.py

Reads the normalised sentences of crates/speech/tests/goldens/sentences.tsv and words.txt. Writes
crates/speech/tests/goldens/english.json: the phonemes of each sentence, and the part of misaki's dictionaries (hexgrad,
Apache-2.0), of the tagger and of the answers of the model for unknown words that these sentences need. Prints how often the
reference reads the sentence before normalisation in the same way.
"""

import json
import pathlib

from hibari.g2p import G2P

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "crates/speech/tests/goldens"


class Recorded(dict):
    """A dictionary that records the keys that were found in it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.found = {}

    def record(self, key):
        if dict.__contains__(self, key):
            self.found[key] = dict.__getitem__(self, key)

    def get(self, key, default=None):
        self.record(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.record(key)
        return super().__contains__(key)


def main():
    lines = (GOLDENS / "sentences.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if line]
    texts = [normalized for _, normalized in pairs]
    texts += (GOLDENS / "words.txt").read_text(encoding="utf-8").splitlines()

    recorded = {}
    for accent in ("american", "british"):
        g2p = G2P(british=accent == "british")
        gold, silver = Recorded(g2p.lexicon.golds.d), Recorded(g2p.lexicon.silvers.d)
        g2p.lexicon.golds.d, g2p.lexicon.silvers.d = gold, silver
        usual, weights = Recorded(g2p.tagger.tagdict), Recorded(g2p.tagger.weights)
        g2p.tagger.tagdict, g2p.tagger.weights = usual, weights
        vocab = Recorded({word: True for word in g2p.tagger.vocab})
        g2p.tagger.vocab = vocab
        special = Recorded(g2p.tokenizer.special)
        g2p.tokenizer.special = special
        letters = {}
        model = g2p.oov

        class Session:
            """Records the classes that the model returns for letters."""

            def __init__(self, session):
                self.session = session

            def run(self, names, inputs):
                out = self.session.run(names, inputs)
                letters[" ".join(map(str, inputs["chars"][0].tolist()))] = out[0][0].tolist()
                return out

        model.sess = Session(model.sess)
        phonemes = [g2p(text, normalize_text=False) for text in texts]
        if accent == "american":
            same = sum(g2p(raw) == expected for (raw, _), expected in zip(pairs, phonemes))
            print(f"{same} of {len(pairs)} sentences are read as the reference reads them without our normalisation")
        recorded[accent] = {
            "phonemes": dict(zip(texts, phonemes)),
            "gold": dict(sorted(gold.found.items())),
            "silver": dict(sorted(silver.found.items())),
            "tagger": {
                "tags": g2p.tagger.tags,
                "tagdict": dict(sorted(usual.found.items())),
                "vocab": sorted(vocab.found),
                "weights": dict(sorted(weights.found.items())),
            },
            "exceptions": dict(sorted(special.found.items())),
            "letters": {
                "in": [c for c, _ in sorted(model.cin.items(), key=lambda item: item[1])],
                "out": [c for _, c in sorted(model.cout.items())],
                "maxlen": model.maxlen,
            },
            "answers": dict(sorted(letters.items())),
        }
    # The tagger does not depend on the accent.
    recorded["british"].pop("tagger")
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    (GOLDENS / "english.json").write_text(text + "\n", encoding="utf-8")


main()
