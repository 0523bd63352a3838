"""Ollama's own Python client against a live Narthex server.

    python ollama_client.py http://127.0.0.1:8000      # needs: pip install ollama==0.6.3

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2.
"""
import json
import sys

import ollama

from checks import check, run

CHAT, EMBEDDING = "smollm2:135m", "all-minilm-l6-v2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS = {"temperature": 0, "num_predict": 16, "num_ctx": 2048}
DEGREES = {"Rome": "21", "Oslo": "3", "Bern": "9", "Madrid": "24", "Berlin": "8", "Paris": "17"}
client = ollama.Client(host=sys.argv[1], timeout=120)


def weather(city: str, unit: str) -> str:
    """Returns the weather of a city.

    Args:
      city: The city
      unit: C or F
    """
    return DEGREES[city]


@check
def a_conversation_is_answered_whole_and_streamed():
    answer = client.chat(CHAT, QUESTION, options=OPTIONS)
    assert "Paris" in answer.message.content and answer.done and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0 and answer.total_duration > 0
    parts = list(client.chat(CHAT, QUESTION, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert parts[-1].done and parts[-1].eval_count == answer.eval_count


@check
def a_prompt_is_answered_whole_streamed_and_raw():
    prompt = QUESTION[0]["content"]
    answer = client.generate(CHAT, prompt, options=OPTIONS)
    assert "Paris" in answer.response, answer
    parts = client.generate(CHAT, prompt, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == answer.response
    assert client.generate(CHAT, "The capital of France is", raw=True, options=OPTIONS).response
    assert client.generate(CHAT).done_reason == "load"


def asked(city):
    return {"role": "user", "content": f"What is the weather in {city}?"}


def answered(city):
    """Returns a question about a city, a call with its result, and the answer."""
    call = {"function": {"name": "weather", "arguments": {"city": city, "unit": "C"}}}
    return [
        asked(city),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": weather(city, "C")},
        {"role": "assistant", "content": f"{weather(city, 'C')} degrees."},
    ]


@check
def a_tool_is_called_whole_and_streamed_and_its_result_is_read():
    # The API cannot force a call. This small model makes one because the conversation has calls already.
    history = [message for city in DEGREES if city != "Paris" for message in answered(city)] + [asked("Paris")]
    request = dict(model=CHAT, tools=[weather], options=OPTIONS | {"num_predict": 60})
    answer = client.chat(messages=history, **request)
    assert answer.message.tool_calls, answer
    call = answer.message.tool_calls[0].function
    assert call.name == "weather" and call.arguments == {"city": "Paris", "unit": "C"}, call
    parts = list(client.chat(messages=history, stream=True, **request))
    streamed = [piece.function for part in parts for piece in part.message.tool_calls or []]
    assert streamed == [call] and parts[-1].done, parts

    result = {"role": "tool", "tool_name": "weather", "content": weather(**call.arguments)}
    final = client.chat(messages=[*history, answer.message, result], **request)
    assert DEGREES["Paris"] in final.message.content, final
    assert client.chat(messages=history, **request | {"tools": None}).prompt_eval_count < answer.prompt_eval_count


@check
def schemas_are_kept():
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    schema["additionalProperties"] = False
    text = client.chat(CHAT, QUESTION, format=schema, options=OPTIONS | {"num_predict": 100}).message.content
    assert json.loads(text)["unit"] in ("C", "F"), text
    json.loads(client.generate(CHAT, "Give an object.", format=schema, options={"temperature": 0}).response)


@check
def texts_are_embedded():
    two = client.embed(EMBEDDING, ["a cat", "a treaty"])
    assert len(two.embeddings) == 2 and len(two.embeddings[0]) == 384, two
    assert client.embeddings(EMBEDDING, "a cat").embedding == two.embeddings[0]


@check
def models_are_listed_shown_and_pulled():
    names = [model.model for model in client.list().models]
    assert CHAT in names and EMBEDDING in names, names
    assert CHAT in [model.model for model in client.ps().models]
    shown = client.show(CHAT)
    assert "tools" in shown.capabilities and shown.modelinfo["llama.context_length"] > 0, shown
    assert client.pull(CHAT).status == "success"
    assert list(client.pull(CHAT, stream=True))[-1].status == "success"


@check
def what_is_wrong_is_named():
    for call in (lambda: client.show("nope"), lambda: client.chat("nope", QUESTION), lambda: client.pull("nope")):
        try:
            call()
        except ollama.ResponseError as error:
            assert error.status_code == 404 and "nope" in error.error, error
        else:
            raise AssertionError("it was not refused")


if __name__ == "__main__":
    sys.exit(run())
