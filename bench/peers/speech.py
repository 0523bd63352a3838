#!/usr/bin/env python3
"""Speed, memory and round trips of speech, with Narthex beside other programs.

    python speech.py speed FOLDER --narthex PROGRAM --model whisper:base \\
        --faster-whisper CONVERSION --whisper-cpp GGML --record RECORD.md
    python speech.py memory FOLDER --narthex PROGRAM --model whisper:base --hours 2
    python speech.py round-trip --narthex PROGRAM --model whisper:base --voice hibari --sentences 200
    python speech.py voice --narthex PROGRAM --voice hibari --hibari

`speed` transcribes the recordings of FOLDER as one file in five rounds, in which the sides take turns, and prints the medians as
real-time factors. FOLDER has WAV files of 16 kHz, such as usr/share/pocketsphinx/test/data/librivox of Debian's
`pocketsphinx-testdata`. CONVERSION has a Whisper's files of CTranslate2, which runs in int8, GGML is a file of whisper.cpp. All
sides decode greedily in English on two threads; models are loaded before.

`memory` transcribes the recordings, repeated for some hours, and prints the peak of the resident memory.

`round-trip` reads sentences with numbers, dates and names aloud, transcribes them, and counts the errors in words after the
normaliser of openai-whisper.

`voice` reads a paragraph aloud in five rounds, and prints the medians of the seconds of speech for each second, and the time to
the first audio of an answer of 20 words. --hibari runs the loop of the package hibari-tts beside it.

Needs numpy and requests; faster-whisper, pywhispercpp, openai-whisper or hibari-tts for what names them.
"""

import argparse
import contextlib
import io
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

import numpy

from transcribe import errors, read

RATE = 16_000
ROUNDS = 5
THREADS = 2
PAUSE = numpy.zeros(RATE // 2, numpy.int16)
PARAGRAPH = (
    "The first trains left the city before sunrise. Nobody on the platform spoke, because the news of the evening was still "
    "too close. A guard in a long coat walked along the carriages and closed the doors one after the other."
)
ANSWER = "The museum opens at nine and closes at six, but the last guided tour of the day begins at four."

FIRST = "Alice Bernard Clara Daniel Emma Felix Grace Henry Isabel Jacob Laura Martin Nora Oliver Paula Robert".split()
LAST = "Adams Baker Carter Dixon Evans Foster Graham Harris Jackson Keller Lambert Morris Nelson Parker Turner".split()
CITIES = "Berlin Boston Chicago Dublin Geneva Lisbon London Madrid Oslo Paris Prague Rome Seattle Vienna".split()
MONTHS = "January February March April May June July August September October November December".split()
PATTERNS = [
    "{first} {last} moved to {city} on {month} {day}, {year}.",
    "The train to {city} leaves at {hour}:{minute} and takes {small} hours.",
    "{first} paid ${price} for {small} tickets to {city}.",
    "In {year}, the museum in {city} had {large} visitors.",
    "Doctor {last} will see you on {month} {day} at {hour} o'clock.",
    "About {percent}% of the people in {city} know {first} {last}.",
    "The parcel weighs {small} kg and costs ${price}.",
    "{first} was born in {year} and has lived in {city} for {small} years.",
]


def sentences(count: int) -> list[str]:
    """Returns sentences with numbers, dates and names; the same ones in each run."""
    chance = random.Random(7)
    return [
        chance.choice(PATTERNS).format(
            first=chance.choice(FIRST), last=chance.choice(LAST), city=chance.choice(CITIES), month=chance.choice(MONTHS),
            day=chance.randint(1, 28), year=chance.randint(1900, 2025), hour=chance.randint(1, 12),
            minute=chance.randint(10, 59), small=chance.randint(2, 12), large=f"{chance.randint(1_000, 99_999):,}",
            price=f"{chance.randint(2, 400)}.{chance.randint(10, 99)}", percent=chance.randint(5, 95),
        )
        for _ in range(count)
    ]


def recordings(folder: Path) -> numpy.ndarray:
    """Returns the recordings of a folder with pauses after them."""
    paths = sorted(folder.glob("*.wav"))
    if not paths:
        raise SystemExit(f"{folder}: expected WAV files, found none")
    return numpy.concatenate([part for path in paths for part in (read(path), PAUSE)])


def write(path: Path, parts, count: int = 1) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, RATE, 0, "NONE", ""))
        for _ in range(count):
            sound.writeframesraw(parts.tobytes())


class Server:
    """`narthex serve` on a free port."""

    def __init__(self, program: str):
        command = [program, "serve", "--port", "0", "--threads", str(THREADS)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"http://[^\s/]+", line)
            if found:
                self.base = found[0] + "/v1/audio"
                return
        raise SystemExit("narthex serve ended before it listened")

    def transcribe(self, model: str, wav: bytes) -> str:
        import requests

        form = {"model": model, "language": "en"}
        answer = requests.post(f"{self.base}/transcriptions", files={"file": ("a.wav", wav)}, data=form, timeout=3600)
        answer.raise_for_status()
        return answer.json()["text"]

    def speak(self, voice: str, text: str) -> tuple[float, float, bytes]:
        """Returns the seconds to the first audio and to the last, and samples of 16 bits with 24 kHz."""
        import requests

        body = {"model": voice, "voice": "default", "input": text, "response_format": "pcm"}
        start = time.monotonic()
        with requests.post(f"{self.base}/speech", json=body, stream=True, timeout=600) as answer:
            answer.raise_for_status()
            pieces, first = [], 0.0
            for piece in answer.iter_content(None):
                first = first or time.monotonic() - start
                pieces.append(piece)
        return first, time.monotonic() - start, b"".join(pieces)


@contextlib.contextmanager
def serving(program: str):
    server = Server(program)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


def medians(sides: dict) -> dict[str, float]:
    """Runs every side once, and then in rounds. Returns the medians of the seconds."""
    for run in sides.values():
        run()
    seconds = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, run in sides.items():
            start = time.monotonic()
            run()
            seconds[side].append(time.monotonic() - start)
    return {side: statistics.median(of_side) for side, of_side in seconds.items()}


def speed(options) -> list[str]:
    samples = recordings(options.folder)
    sides = {}
    with tempfile.TemporaryDirectory() as scratch, serving(options.narthex) as server:
        path = Path(scratch) / "all.wav"
        write(path, samples)
        for model in options.model:
            sides[f"narthex {model}"] = lambda model=model: server.transcribe(model, path.read_bytes())
        if options.faster_whisper:
            from faster_whisper import WhisperModel

            model = WhisperModel(str(options.faster_whisper), device="cpu", compute_type="int8", cpu_threads=THREADS)
            sides["faster-whisper, int8"] = lambda: list(model.transcribe(str(path), language="en", beam_size=1)[0])
        if options.whisper_cpp:
            from pywhispercpp.model import Model

            cpp = Model(str(options.whisper_cpp), n_threads=THREADS, print_progress=False, print_realtime=False)
            sides["whisper.cpp"] = lambda: cpp.transcribe(str(path), language="en", greedy={"best_of": 1})
        found = medians(sides)
    duration = len(samples) / RATE
    rows = [f"| {side} | {seconds:.2f} | {duration / seconds:.1f} |" for side, seconds in found.items()]
    return [f"{duration:.1f} s of speech, medians of {ROUNDS} rounds.", "",
            "| Side | Seconds | Times real time |", "|---|---:|---:|", *rows]


def memory(options) -> list[str]:
    samples = recordings(options.folder)
    count = -(-options.hours * 3600 * RATE // len(samples))
    lines = ["| Model | Hours | Peak memory, MB | Times real time |", "|---|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "long.wav"
        write(path, samples, int(count))
        hours = count * len(samples) / RATE / 3600
        for model in options.model:
            command = [options.narthex, "transcribe", str(path), "-m", model, "--language", "en"]
            start = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(f"narthex transcribe ended with {status}")
            rate = hours * 3600 / (time.monotonic() - start)
            lines.append(f"| {model} | {hours:.2f} | {usage.ru_maxrss / 1000:.0f} | {rate:.1f} |")
    return lines


def round_trip(options) -> list[str]:
    from whisper.normalizers import EnglishTextNormalizer

    normalize = EnglishTextNormalizer()
    lines = ["| Voice | Model | Errors | Words | Word error rate |", "|---|---|---:|---:|---:|"]
    wrong = []
    with serving(options.narthex) as server:
        for model in options.model:
            count = total = 0
            for text in sentences(options.sentences):
                _, _, pcm = server.speak(options.voice, text)
                sound = io.BytesIO()
                with wave.open(sound, "wb") as file:
                    file.setparams((1, 2, 24_000, 0, "NONE", ""))
                    file.writeframes(pcm)
                found = server.transcribe(model, sound.getvalue())
                expected = normalize(text).split()
                of_text = errors(expected, normalize(found).split())
                count, total = count + of_text, total + len(expected)
                if of_text:
                    wrong.append(f"- {model}, {of_text}: {text} | {found}")
            rate = 100 * count / max(total, 1)
            lines.append(f"| {options.voice} | {model} | {count} | {total} | {rate:.2f} % |")
    return [*lines, "", "Sentences with errors:", "", *wrong]


def voice(options) -> list[str]:
    with serving(options.narthex) as server:
        seconds = len(server.speak(options.voice, PARAGRAPH)[2]) / 2 / 24_000
        sides = {f"narthex {options.voice}": lambda: server.speak(options.voice, PARAGRAPH)}
        if options.hibari:
            from hibari import Hibari

            own = Hibari(threads=THREADS)
            sides["hibari-tts"] = lambda: own(PARAGRAPH)
        found = medians(sides)
        firsts = statistics.median(server.speak(options.voice, ANSWER)[0] for _ in range(ROUNDS))
    rows = [f"| {side} | {taken:.2f} | {seconds / taken:.1f} |" for side, taken in found.items()]
    return [f"{seconds:.1f} s of speech, medians of {ROUNDS} rounds.", "",
            "| Side | Seconds | Times real time |", "|---|---:|---:|", *rows, "",
            f"First audio of an answer of {len(ANSWER.split())} words: {1000 * firsts:.0f} ms."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in {"speed": speed, "memory": memory, "round-trip": round_trip, "voice": voice}.items():
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--narthex", metavar="PROGRAM", required=True)
        command.add_argument("--model", action="append", default=[], help="a model of Narthex, with its scheme")
        command.add_argument("--record", type=Path, help="file for the table; it is printed too")
        if name in ("speed", "memory"):
            command.add_argument("folder", type=Path)
        if name == "speed":
            command.add_argument("--faster-whisper", type=Path, metavar="CONVERSION")
            command.add_argument("--whisper-cpp", type=Path, metavar="GGML")
        if name == "memory":
            command.add_argument("--hours", type=float, default=2)
        if name in ("round-trip", "voice"):
            command.add_argument("--voice", default="hibari")
        if name == "round-trip":
            command.add_argument("--sentences", type=int, default=200)
        if name == "voice":
            command.add_argument("--hibari", action="store_true")
    options = parser.parse_args()
    text = "\n".join(options.run(options)) + "\n"
    sys.stdout.write(text)
    if options.record:
        options.record.write_text(text)


main()
