"""The Python clients of OpenAI, Anthropic and Ollama with pictures, sounds and videos, against a live Narthex server.

    python media_client.py http://127.0.0.1:8000 local/tiny-gemma3n      # needs: pip install openai anthropic ollama

Prints a line per check and a count; exits 1 where one failed. `cargo xtask test --only clients` compiles the model, a Gemma 3n
with random weights: its answers mean nothing, but its prompts have as many tokens as their parts.
"""
import base64
import io
import sys
import wave
from pathlib import Path

import anthropic
import ollama
import openai

from checks import check, run

ROOT, MODEL = sys.argv[1:]
FILES = Path(__file__).parent.parent / "crates/image/tests"
PICTURE, OTHER, CLIP = (FILES / name for name in ("fixtures/rgb.png", "fixtures/grey.png", "videos/parts.gif"))
# Positions in the prompt of this model, and the frames that are taken of the clip.
POSITIONS, SOUND_POSITIONS, FRAMES = 10, 16, 4
TEXT = "what?"

one = openai.OpenAI(base_url=ROOT + "/v1", api_key="unused", max_retries=0, timeout=120)
two = anthropic.Anthropic(base_url=ROOT, api_key="unused", max_retries=0, timeout=120)
three = ollama.Client(host=ROOT, timeout=120)


def encoded(file):
    return base64.b64encode(file.read_bytes()).decode()


def data_url(file, kind="image/png"):
    return f"data:{kind};base64,{encoded(file)}"


def wav():
    """Returns a second of a tone."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16000, 0, "NONE", ""))
        writer.writeframes(b"".join(int(8000 * (i % 40 < 20)).to_bytes(2, "little") for i in range(16000)))
    return file.getvalue()


def chat(*parts):
    """Returns the answer to parts and a text, and the number of tokens of the prompt."""
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": TEXT}]}]
    answer = one.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, temperature=0, logprobs=True)
    return [token.logprob for token in answer.choices[0].logprobs.content], answer.usage.prompt_tokens


def image(file):
    return {"type": "image_url", "image_url": {"url": data_url(file), "detail": "high"}}


@check
def openai_chats_about_pictures():
    plain, tokens = chat()
    first, seen = chat(image(PICTURE))
    assert seen == tokens + POSITIONS, (seen, tokens)
    other, same = chat(image(OTHER))
    assert same == seen and other != first != plain, (first, other)
    assert chat(image(PICTURE)) == (first, seen)
    assert chat(image(PICTURE), image(OTHER))[1] == tokens + 2 * POSITIONS


@check
def openai_chats_about_sounds_and_videos():
    _, tokens = chat()
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    assert chat(sound)[1] == tokens + SOUND_POSITIONS
    video = {"type": "video_url", "video_url": {"url": data_url(CLIP, "image/gif")}}
    assert chat(video, sound)[1] == tokens + FRAMES * POSITIONS + SOUND_POSITIONS


def respond(*parts):
    content = [*parts, {"type": "input_text", "text": TEXT}]
    request = {"model": MODEL, "input": [{"role": "user", "content": content}]}
    answer = one.responses.create(**request, max_output_tokens=4, temperature=0)
    assert one.responses.input_tokens.count(**request).input_tokens == answer.usage.input_tokens
    return answer.usage.input_tokens


@check
def openai_responds_to_pictures():
    tokens = respond()
    assert respond({"type": "input_image", "image_url": data_url(PICTURE), "detail": "auto"}) == tokens + POSITIONS
    file = {"type": "input_file", "filename": "rgb.png", "file_data": data_url(PICTURE)}
    assert respond(file) == tokens + POSITIONS


@check
def openai_names_a_picture_that_it_cannot_read():
    try:
        chat({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}})
    except openai.BadRequestError as error:
        assert error.body["param"] == "messages[0].content[0].image_url.url", error.body
        assert "--allow-media-urls" in error.body["message"], error.body
    else:
        raise AssertionError("an address was read")


def message(*parts):
    content = [*parts, {"type": "text", "text": TEXT}]
    request = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    usage = two.messages.create(**request, max_tokens=4).usage
    counted = two.messages.count_tokens(**request).input_tokens
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)
    return counted


@check
def anthropic_reads_pictures():
    source = {"type": "base64", "media_type": "image/png", "data": encoded(PICTURE)}
    assert message({"type": "image", "source": source}) == message() + POSITIONS


@check
def ollama_reads_pictures():
    options = {"temperature": 0, "num_predict": 4}

    def asked(**fields):
        answer = three.chat(MODEL, [{"role": "user", "content": TEXT} | fields], options=options)
        return answer.prompt_eval_count

    tokens = asked()
    # A path, bytes and base64.
    for picture in (PICTURE, PICTURE.read_bytes(), encoded(PICTURE)):
        assert asked(images=[picture]) == tokens + POSITIONS
    assert asked(images=[PICTURE, OTHER]) == tokens + 2 * POSITIONS
    assert three.generate(MODEL, TEXT, images=[PICTURE], options=options).prompt_eval_count > POSITIONS
    assert {"vision", "audio"} <= set(three.show(MODEL).capabilities)


if __name__ == "__main__":
    sys.exit(run())
