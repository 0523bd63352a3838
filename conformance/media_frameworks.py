"""LangChain with pictures against a live Narthex server.

    python media_frameworks.py http://127.0.0.1:8000 local/tiny-gemma3n      # `cargo xtask clients` installs the framework

Prints a line per check and a count; exits 1 where one failed. The model is that of `media_client.py`.
"""
import base64
import sys
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from checks import check, run

ROOT, MODEL = sys.argv[1:]
PICTURE = base64.b64encode((Path(__file__).parent.parent / "crates/image/tests/fixtures/rgb.png").read_bytes()).decode()
URL = f"data:image/png;base64,{PICTURE}"
# Positions of a picture in the prompt of this model.
POSITIONS = 10


def asked(model, *parts):
    answer = model.invoke([HumanMessage(content=[*parts, {"type": "text", "text": "what?"}])])
    return answer.usage_metadata["input_tokens"]


def reads_pictures(**options):
    model = ChatOpenAI(model=MODEL, base_url=ROOT + "/v1", api_key="unused", max_tokens=4, max_retries=0, **options)
    tokens = asked(model)
    for part in (
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image", "base64": PICTURE, "mime_type": "image/png"},
        {"type": "image", "url": URL},
    ):
        assert asked(model, part) == tokens + POSITIONS, part


@check
def langchain_chats_about_pictures():
    reads_pictures()


@check
def langchain_responds_to_pictures():
    reads_pictures(use_responses_api=True)


if __name__ == "__main__":
    sys.exit(run())
