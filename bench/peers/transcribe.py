#!/usr/bin/env python3
"""Word error rates of Narthex, transformers and faster-whisper on spoken sentences with transcripts.

    python transcribe.py FOLDER --narthex PROGRAM --model whisper:base@f16 --model whisper:base@w8 \\
        --transformers CHECKPOINT --faster-whisper CONVERSION --record RECORD.md

FOLDER has WAV files of 16 kHz and `transcription`, with a line for each file: `<s> words </s> (name)`. Debian's package
`pocketsphinx-testdata` has such a folder (usr/share/pocketsphinx/test/data/librivox). CHECKPOINT is a folder with the
safetensors of a Whisper, CONVERSION one with the files of CTranslate2; either may be left out.

Every side transcribes each sentence, and one long file: all sentences four times in another order, with a second of silence
after each. All sides decode greedily with timestamps, in English. Errors are counted over lower-case words without
punctuation; hyphens divide words. Needs numpy; transformers and torch, or faster-whisper, for their sides.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

import numpy

RATE = 16_000
REPETITIONS = 4
PAUSE = RATE


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--narthex", metavar="PROGRAM")
    parser.add_argument("--model", action="append", default=[], help="a model of Narthex with its scheme")
    parser.add_argument("--transformers", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--faster-whisper", type=Path, metavar="CONVERSION")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, help="file for the table; it is printed too")
    return parser.parse_args()


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()


def errors(expected: list[str], found: list[str]) -> int:
    """Returns the edit distance of two lists of words."""
    row = list(range(len(found) + 1))
    for at, word in enumerate(expected, 1):
        last, row[0] = row[0], at
        for place, other in enumerate(found, 1):
            last, row[place] = row[place], min(last + (word != other), row[place] + 1, row[place - 1] + 1)
    return row[-1]


def read(path: Path) -> numpy.ndarray:
    with wave.open(str(path)) as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path}: expected 16 bits of one channel with {RATE} Hz")
        return numpy.frombuffer(sound.readframes(sound.getnframes()), numpy.int16)


def write(path: Path, samples: numpy.ndarray) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, RATE, 0, "NONE", ""))
        sound.writeframes(samples.tobytes())


def corpus(folder: Path, scratch: Path) -> list[tuple[Path, list[str]]]:
    """Returns the files with their words: the sentences, then the long file."""
    lines = (folder / "transcription").read_text().splitlines()
    parsed = [re.fullmatch(r"<s> (.*) </s> \((.*)\)", line.strip()) for line in lines if line.strip()]
    sentences = [(folder / f"{line[2]}.wav", words(line[1])) for line in parsed]
    order = [sentence for _ in range(REPETITIONS) for sentence in sentences]
    random.Random(7).shuffle(order)
    silence = numpy.zeros(PAUSE, numpy.int16)
    write(scratch / "long.wav", numpy.concatenate([part for path, _ in order for part in (read(path), silence)]))
    return [*sentences, (scratch / "long.wav", [word for _, text in order for word in text])]


def narthex(program: str, model: str, files: list[Path], threads: int) -> list[str]:
    command = [program, "transcribe", *map(str, files), "--model", model, "--language", "en", "--format", "json"]
    out = subprocess.run([*command, "--threads", str(threads)], check=True, capture_output=True, text=True).stdout
    texts = []
    while out.strip():
        value, end = json.JSONDecoder().raw_decode(out.lstrip())
        texts.append(value["text"])
        out = out.lstrip()[end:]
    return texts


def transformers(checkpoint: Path, files: list[Path], threads: int) -> list[str]:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerFast, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration

    torch.set_num_threads(threads)
    model = WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig.from_pretrained(checkpoint)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"))
    token = tokenizer.convert_tokens_to_ids
    settings = model.generation_config
    settings.decoder_start_token_id = token("<|startoftranscript|>")
    settings.eos_token_id = settings.pad_token_id = settings.bos_token_id = token("<|endoftext|>")
    settings.no_timestamps_token_id = token("<|notimestamps|>")
    settings.prev_sot_token_id = token("<|startofprev|>")
    settings.max_length = 448
    options = {"return_timestamps": True, "num_beams": 1, "do_sample": False}
    # Models of English alone have one token less.
    settings.is_multilingual = model.config.vocab_size > 51864
    if settings.is_multilingual:
        settings.lang_to_id = {"<|en|>": token("<|en|>")}
        settings.task_to_id = {"transcribe": token("<|transcribe|>"), "translate": token("<|translate|>")}
        options |= {"language": "en", "task": "transcribe"}
    extractor = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    texts = []
    for path in files:
        samples = read(path).astype(numpy.float32) / 32768
        is_long = len(samples) > 30 * RATE
        features = extractor(
            samples, sampling_rate=RATE, return_tensors="pt", truncation=not is_long, return_attention_mask=True,
            padding="longest" if is_long else "max_length",
        )
        with torch.no_grad():
            tokens = model.generate(features.input_features, attention_mask=features.attention_mask, **options)
        texts.append(tokenizer.decode([id for id in tokens[0].tolist() if id < settings.eos_token_id]))
    return texts


def faster_whisper(conversion: Path, files: list[Path], threads: int) -> list[str]:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(conversion), device="cpu", compute_type="float32", cpu_threads=threads)
    transcribe = lambda path: model.transcribe(str(path), language="en", beam_size=1)[0]
    return ["".join(segment.text for segment in transcribe(path)) for path in files]


def main() -> None:
    options = arguments()
    sides = {}
    if options.narthex:
        for model in options.model:
            sides[f"narthex {model}"] = lambda files, model=model: narthex(options.narthex, model, files, options.threads)
    if options.transformers:
        sides["transformers, f32"] = lambda files: transformers(options.transformers, files, options.threads)
    if options.faster_whisper:
        sides["faster-whisper, f32"] = lambda files: faster_whisper(options.faster_whisper, files, options.threads)

    table = [
        "| Side | Sentences | Word error rate | Long file | Word error rate | Seconds in all |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    differences = []
    with tempfile.TemporaryDirectory() as scratch:
        files = corpus(options.folder, Path(scratch))
        for side, run in sides.items():
            start = time.monotonic()
            texts = run([path for path, _ in files])
            seconds = time.monotonic() - start
            counts = [(errors(expected, words(text)), len(expected)) for (_, expected), text in zip(files, texts, strict=True)]
            short, long = [sum(column) for column in zip(*counts[:-1])], counts[-1]
            cells = [f"{wrong} of {all} | {100 * wrong / all:.2f} %" for wrong, all in (short, long)]
            table.append(f"| {side} | {cells[0]} | {cells[1]} | {seconds:.1f} |")
            print(table[-1], file=sys.stderr, flush=True)
            for (path, expected), text in list(zip(files, texts))[:-1]:
                if errors(expected, words(text)):
                    differences.append(f"- {side}, {path.stem}: {text.strip()}")
    lines = [*table, "", "Sentences with errors:", "", *differences]
    print("\n".join(lines))
    if options.record:
        options.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
