"""Records ids of phonemes of Kokoro and Piper, and misaki's phonemes of espeak-ng, for the tests of crates/speech.

    python3 -m venv /tmp/ids && /tmp/ids/bin/pip install kokoro-onnx==0.6.1 piper-tts==1.8.0 phonemizer-fork espeakng-loader
    /tmp/ids/bin/pip install --no-deps misaki==0.9.4
    /tmp/ids/bin/python conformance/speech/phoneme_ids.py

Reads the phonemes of crates/speech/tests/goldens/english.json. Writes phoneme_ids.json beside it: ids of every twelfth
sentence as kokoro-onnx maps them, ids of sentences in IPA as piper-tts maps them, and for sentences of other languages the
output of espeak-ng for each clause and the phonemes that misaki makes of it. The packages phonemizer-fork, espeakng-loader
and piper-tts are under the GPL; they serve as references here and are not part of Narthex.
"""

import json
import pathlib

from kokoro_onnx.tokenizer import Tokenizer
from misaki.espeak import EspeakG2P
from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP, phonemes_to_ids

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "crates/speech/tests/goldens"

SENTENCES = {
    "es": ["¿Qué hora es, amigo?", "Hoy llueve mucho en Ciudad de México.", "Pizza y chocolate: ¡qué rico!"],
    "fr-fr": ["Bonjour, comment allez-vous ?", "Il dit « oui » (peut-être).", "Le week-end, il fait beau."],
    "hi": ["नमस्ते, आप कैसे हैं?", "मुझे चाय पसंद है!"],
    "it": ["Ciao, come stai?", "La pizza è buona; il gelato, pure!", "Mezzogiorno e mezzo."],
    "pt-br": ["Olá, tudo bem?", "Não sei — talvez amanhã…", "O dia está bonito."],
}

IPA = ["həlˈoʊ, wˈɜːld!", "ɡuːtn̩ mˈɔʁɡn̩.", "bɔ̃ʒˈuʁ", "x☃y", "☃"]


class RecordedClauses:
    """Records the output of espeak-ng for each clause."""

    def __init__(self, espeak):
        self.espeak = espeak
        self.clauses = {}

    def __getattr__(self, name):
        return getattr(self.espeak, name)

    def text_to_phonemes(self, text, tie=False):
        output = self.espeak.text_to_phonemes(text, tie)
        self.clauses[text.strip()] = output.replace("\u0361", "^")
        return output


def main():
    english = json.loads((GOLDENS / "english.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer()
    phonemes = sorted({ps for part in english.values() for ps in part["phonemes"].values()})[::12]
    kokoro = {ps: tokenizer.tokenize(ps) for ps in phonemes}

    sentences = []
    for language, texts in SENTENCES.items():
        g2p = EspeakG2P(language)
        for text in texts:
            g2p.backend._espeak = recorded = RecordedClauses(g2p.backend._espeak)
            found = g2p(text)[0]
            g2p.backend._espeak = recorded.espeak
            sentences.append(
                {"text": text, "clauses": recorded.clauses, "phonemes": found, "ids": tokenizer.tokenize(found)}
            )

    decomposed = [text for text in IPA if any(phoneme in DEFAULT_PHONEME_ID_MAP for phoneme in text)]
    piper = {text: phonemes_to_ids(list(text)) for text in decomposed}
    single = {phoneme: ids for phoneme, ids in DEFAULT_PHONEME_ID_MAP.items() if len(phoneme) == 1}
    recorded = {
        "vocabulary": tokenizer.vocab,
        "kokoro": kokoro,
        "sentences": sentences,
        "piper": {"map": single, "ids": piper},
    }
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    (GOLDENS / "phoneme_ids.json").write_text(text + "\n", encoding="utf-8")


main()
