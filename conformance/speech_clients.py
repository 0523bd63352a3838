"""Clients that hear and speak against a live Narthex server: OpenAI's own, and the calls of Open WebUI and LangChain.

    python speech_clients.py http://127.0.0.1:8000      # needs: pip install openai requests

Prints a line per check and a count; exits 1 where one failed. Needs the models hibari and whisper:tiny.en. The speech that is
transcribed is that of hibari.
"""
import io
import json
import sys
import wave

import requests
from openai import OpenAI

from checks import check, run

BASE = sys.argv[1] + "/v1"
HEARS, SPEAKS = "whisper:tiny.en", "hibari"
TEXT = "The quick brown fox jumps over the lazy dog."
client = OpenAI(base_url=BASE, api_key="unused", max_retries=0)


def words(text):
    return "".join(sign for sign in text.lower() if sign.isalpha() or sign == " ").split()


def speech():
    """A recording of TEXT."""
    answer = client.audio.speech.create(model=SPEAKS, voice="default", input=TEXT, response_format="wav")
    return answer.read()


def check_text(text):
    assert words(text) == words(TEXT), text


@check
def openai_speaks_whole_and_streamed():
    with wave.open(io.BytesIO(speech())) as sound:
        # The header of a stream does not state its length.
        rate, count = sound.getframerate(), len(sound.readframes(sound.getnframes())) // 2
    assert sound.getnchannels() == 1 and 2 < count / rate < 6, (rate, count)
    request = {"model": SPEAKS, "voice": "default", "input": TEXT, "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**request) as answer:
        pieces = list(answer.iter_bytes(4096))
    assert len(b"".join(pieces)) == 2 * count and len(pieces) > 4, len(pieces)
    with client.audio.speech.with_streaming_response.create(**request, stream_format="sse") as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}, events[0]
    assert events[-1]["type"] == "speech.audio.done" and events[-1]["usage"]["input_tokens"] > 0, events[-1]


@check
def openai_transcribes_in_every_format():
    file = ("fox.wav", speech())
    create = client.audio.transcriptions.create
    check_text(create(model=HEARS, file=file).text)
    verbose = create(model=HEARS, file=file, response_format="verbose_json", timestamp_granularities=["segment", "word"])
    check_text(verbose.text)
    assert verbose.language == "english" and 2 < verbose.duration < 6, verbose
    assert words("".join(segment.text for segment in verbose.segments)) == words(TEXT), verbose.segments
    assert [words(word.word)[0] for word in verbose.words] == words(TEXT), verbose.words
    assert all(first.end <= next.end for first, next in zip(verbose.words, verbose.words[1:])), verbose.words
    check_text(create(model=HEARS, file=file, response_format="text"))
    assert create(model=HEARS, file=file, response_format="srt").startswith("1\n00:00:0")
    assert create(model=HEARS, file=file, response_format="vtt").startswith("WEBVTT")
    check_text(create(model=HEARS, file=file, extra_body={"beam_size": 5}).text)


@check
def openai_streams_a_transcript():
    events = list(client.audio.transcriptions.create(model=HEARS, file=("fox.wav", speech()), stream=True))
    assert [event.type for event in events][-1] == "transcript.text.done", events
    text = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    assert text.strip() == events[-1].text, events
    check_text(text)


@check
def openai_s_translations_are_refused_by_a_model_of_one_language():
    try:
        client.audio.translations.create(model=HEARS, file=("fox.wav", speech()))
    except Exception as error:
        assert error.status_code == 400 and error.body["param"] == "model", error
        assert "several languages" in error.body["message"], error
    else:
        raise AssertionError("whisper:tiny.en translates")


@check
def open_webui_reads_answers_aloud_and_hears_questions():
    voices = requests.get(BASE + "/audio/voices", timeout=60).json()["voices"]
    voice = next(voice["id"] for voice in voices if voice["model"] == SPEAKS)
    payload = {"model": SPEAKS, "input": TEXT, "voice": voice, "response_format": "wav"}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer unused"}
    spoken = requests.post(BASE + "/audio/speech", json=payload, headers=headers, timeout=60)
    spoken.raise_for_status()
    heard = requests.post(
        BASE + "/audio/transcriptions", headers={"Authorization": "Bearer unused"}, timeout=60,
        files={"file": ("recording.wav", spoken.content, "audio/wav")}, data={"model": HEARS, "language": "en"},
    )
    heard.raise_for_status()
    check_text(heard.json()["text"])


@check
def langchain_s_parser_reads_a_recording():
    # The call of OpenAIWhisperParser, which needs ffmpeg for its chunks.
    file = io.BytesIO(speech())
    file.name = "part_0.mp3"
    options = {"language": "en", "prompt": "", "response_format": "json", "temperature": 0.0}
    check_text(client.audio.transcriptions.create(model=HEARS, file=file, **options).text)


if __name__ == "__main__":
    sys.exit(run())
