"""Anthropic's own Python client against a live Narthex server.

    python anthropic_client.py http://127.0.0.1:8000      # needs: pip install anthropic==2.12.0

Prints a line per check and a count; exits 1 where one failed. Needs the model smollm2:135m.
"""
import sys

import anthropic

from checks import check, run

CHAT = "smollm2:135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "weather",
    "description": "Returns the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
# This version of the client has no parameter for the temperature.
GREEDY = {"temperature": 0}
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0, timeout=120)


def ask(**changes):
    request = {"model": CHAT, "messages": QUESTION, "max_tokens": 16, "extra_body": GREEDY} | changes
    return client.messages.create(**request)


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        return
    raise AssertionError(f"expected {kind.__name__}")


@check
def a_message_is_answered_and_counted():
    answer = ask(system="You answer briefly.")
    assert answer.type == "message" and answer.role == "assistant" and answer.content[0].type == "text", answer
    assert ask().stop_reason == "end_turn" and "Paris" in ask().content[0].text
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 0
    assert 0 < answer.usage.output_tokens <= 16
    assert ask(max_tokens=3).stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model=CHAT, messages=QUESTION).input_tokens
    usage = ask().usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


@check
def a_stream_is_the_same_answer_in_pieces():
    with client.messages.stream(model=CHAT, messages=QUESTION, max_tokens=16, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == ask().content[0].text == final.content[0].text, text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 0


@check
def a_tool_is_called_whole_and_streamed():
    request = dict(tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}, max_tokens=200)
    answer = ask(**request)
    call = next(block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use" and call.name == "weather" and call.input["unit"] in ("C", "F"), answer
    with client.messages.stream(model=CHAT, messages=QUESTION, extra_body=GREEDY, **request) as stream:
        streamed = stream.get_final_message()
    call = next(block for block in streamed.content if block.type == "tool_use")
    assert set(call.input) == {"city", "unit"}, streamed
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
    messages = [*QUESTION, {"role": "assistant", "content": streamed.content}, {"role": "user", "content": [result]}]
    assert ask(messages=messages, tools=[WEATHER], max_tokens=4).usage.output_tokens > 0


@check
def what_is_wrong_is_named():
    refused(anthropic.NotFoundError, lambda: ask(model="nope"))
    refused(anthropic.BadRequestError, lambda: ask(messages=[]))
    refused(anthropic.BadRequestError, lambda: ask(messages=[{"role": "user", "content": "word " * 9000}]))


if __name__ == "__main__":
    sys.exit(run())
