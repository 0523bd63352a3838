"""OpenAI's own Python client against a server under emulation, with few tokens and long waits.

    python emulated_client.py http://127.0.0.1:8000/v1      # needs: pip install openai==3.52.0

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2.
"""
import json
import math
import sys

import openai

from checks import check, run
from openai_session import EMBEDDING, Session

session = Session(timeout=900, max_tokens=8)
client, ask = session.client, session.ask


@check
def a_stream_is_the_same_answer_in_pieces():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask().choices[0].message.content and "Paris" in text, text
    assert chunks[-1].usage.completion_tokens > 0


@check
def a_required_tool_is_called():
    parameters = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 1}},
                  "required": ["n"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "roll", "parameters": parameters}}
    answer = ask(tools=[tool], tool_choice="required", max_tokens=40)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "roll" and 1 <= json.loads(call.function.arguments)["n"] <= 9, call


@check
def a_schema_is_followed():
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    content = ask(response_format=form, max_tokens=24).choices[0].message.content
    assert json.loads(content)["city"] in ("Paris", "Rome"), content


@check
def a_cancelled_stream_does_not_block_the_next_request():
    stream = ask(stream=True, max_tokens=400)
    next(iter(stream))
    stream.close()
    assert ask(max_tokens=2).usage.completion_tokens == 2


@check
def embeddings_have_length_one():
    vectors = [item.embedding for item in client.embeddings.create(model=EMBEDDING, input=["a cat", "a dog"]).data]
    assert len(vectors) == 2 and len(vectors[0]) == 384
    assert all(abs(math.hypot(*vector) - 1) < 1e-3 for vector in vectors)


@check
def a_mistake_is_an_error_with_its_parameter():
    try:
        ask(temperature=9)
    except openai.BadRequestError as error:
        assert error.body["param"] == "temperature", error.body
        return
    raise AssertionError("expected a refusal")


sys.exit(run())
