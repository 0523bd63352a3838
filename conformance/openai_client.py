"""OpenAI's own Python client against a live Narthex server.

    python openai_client.py http://127.0.0.1:8000/v1      # needs: pip install openai[realtime]==3.52.0

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2.
"""
import base64
import json
import math
import sys
import time

import openai

from checks import check, run
from openai_session import CHAT, EMBEDDING, QUESTION, Session

session = Session(timeout=120, max_tokens=16)
client, ask = session.client, session.ask


def refused(kind, param, call):
    try:
        call()
    except kind as error:
        assert error.body["message"], error.body
        assert param is None or error.body["param"] == param, error.body
        return
    raise AssertionError(f"expected {kind.__name__}")


@check
def chat_answers_and_counts():
    answer = ask()
    choice, usage = answer.choices[0], answer.usage
    assert "Paris" in choice.message.content and choice.message.role == "assistant", answer
    assert choice.finish_reason == "stop" and answer.object == "chat.completion"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens <= 16


@check
def a_stream_is_the_same_answer_in_pieces():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask().choices[0].message.content, text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


@check
def length_ends_an_answer():
    answer = ask(max_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    assert ask(max_tokens=openai.omit, max_completion_tokens=2).usage.completion_tokens == 2


@check
def a_long_system_prompt_is_read_once():
    # About 3,000 tokens that no earlier request has read.
    system = f"Edition {time.time_ns()}. "
    system += " ".join(f"Rule {number}: file {number * 7919 % 1000} before {number * 31 % 97}." for number in range(200))

    def first_token(question):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        begun, seconds, usage = time.monotonic(), None, None
        for chunk in ask(messages=messages, max_tokens=1, stream=True, stream_options={"include_usage": True}):
            # The first chunk has only the role, and comes before the prompt is read.
            if chunk.choices and chunk.choices[0].finish_reason:
                seconds = time.monotonic() - begun
            usage = chunk.usage or usage
        return seconds, usage

    first, usage = first_token("Which file is first?")
    assert usage.prompt_tokens > 2900 and usage.prompt_tokens_details.cached_tokens < 100, usage
    again, usage = first_token("And which one is last?")
    assert usage.prompt_tokens_details.cached_tokens > 0.9 * usage.prompt_tokens, usage
    assert again <= 0.1 * first, (first, again)


@check
def stop_strings_end_an_answer():
    answer = ask(stop=["Paris"]).choices[0]
    assert answer.finish_reason == "stop" and "Paris" not in answer.message.content and answer.message.content


@check
def several_choices_and_seeds():
    sample = dict(n=3, temperature=1.0, seed=11, max_tokens=12)
    first, again = ask(**sample), ask(**sample)
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert first.choices[0].message.content == again.choices[0].message.content
    indices = {chunk.choices[0].index for chunk in ask(stream=True, **sample)}
    assert indices == {0, 1, 2}


@check
def log_probabilities():
    content = ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert content and all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in content)
    assert all(token.token == token.top_logprobs[0].token for token in content)
    assert bytes(byte for token in content for byte in token.bytes).decode().startswith("The capital")


@check
def every_role_and_form_of_content():
    parts = [{"type": "text", "text": "What is the capital "}, {"type": "text", "text": "of France?"}]
    assert "Paris" in ask(messages=[{"role": "user", "content": parts}]).choices[0].message.content
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "You answer briefly."}, *QUESTION]
        assert ask(messages=messages).choices[0].message.content
    history = [*QUESTION, {"role": "assistant", "content": None}, {"role": "tool", "content": "Paris", "tool_call_id": "a"}]
    assert ask(messages=[*history, *QUESTION]).usage.prompt_tokens > 0


@check
def text_completions():
    request = dict(model=CHAT, prompt="The capital of France is", max_tokens=4, temperature=0)
    plain = client.completions.create(**request)
    echoed = client.completions.create(**request, echo=True, logprobs=2)
    assert echoed.choices[0].text == request["prompt"] + plain.choices[0].text
    logprobs = echoed.choices[0].logprobs
    assert "".join(logprobs.tokens) == echoed.choices[0].text and logprobs.token_logprobs[0] is None
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True))
    assert streamed == plain.choices[0].text
    two = client.completions.create(**request | {"prompt": ["One", "Two"]})
    assert [choice.index for choice in two.choices] == [0, 1]


@check
def embeddings_in_every_form():
    texts = ["a cat", "a kitten", "a treaty"]
    coded = client.embeddings.create(model=EMBEDDING, input=texts)
    vectors = [item.embedding for item in coded.data]
    plain = client.embeddings.create(model=EMBEDDING, input=texts, encoding_format="float").data
    assert all(math.isclose(a, b, abs_tol=1e-6) for x, y in zip(vectors, plain) for a, b in zip(x, y.embedding))
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert len(vectors[0]) == 384 and abs(dot(vectors[0], vectors[0]) - 1) < 1e-3
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]) + 0.2
    short = client.embeddings.create(model=EMBEDDING, input="a cat", dimensions=64).data[0].embedding
    assert len(short) == 64 and abs(dot(short, short) - 1) < 1e-3
    assert client.embeddings.create(model=EMBEDDING, input=[[101, 1037, 4937, 102]]).usage.prompt_tokens == 4
    refused(openai.BadRequestError, "input", lambda: client.embeddings.create(model=EMBEDDING, input="word " * 900))
    cut = client.embeddings.create(model=EMBEDDING, input="word " * 900, extra_body={"truncate": True})
    assert cut.usage.prompt_tokens == 256


@check
def calls_and_schemas_are_kept():
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}}
    choice = ask(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200).choices[0]
    call = choice.message.tool_calls[0].function
    assert choice.finish_reason == "tool_calls" and call.name == "weather", choice
    assert json.loads(call.arguments)["unit"] in ("C", "F"), call
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": parameters, "strict": True}}
    chunks = ask(response_format=schema, stream=True, max_tokens=200)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert set(json.loads(text)) == {"city", "unit"}, text


@check
def models_are_listed():
    names = [model.id for model in client.models.list()]
    assert CHAT in names and EMBEDDING in names, names
    assert client.models.retrieve(CHAT).id == CHAT
    refused(openai.NotFoundError, None, lambda: client.models.retrieve("nope"))


@check
def what_is_wrong_is_named():
    bad = openai.BadRequestError
    refused(openai.NotFoundError, "model", lambda: ask(model="nope"))
    refused(bad, "temperature", lambda: ask(temperature=3))
    refused(bad, "max_tokens", lambda: ask(max_tokens=-2))
    refused(bad, "messages", lambda: ask(messages=[]))
    refused(bad, "messages", lambda: ask(messages=[{"role": "user", "content": "word " * 9000}]))
    refused(bad, "model", lambda: ask(model=EMBEDDING))
    refused(bad, "model", lambda: client.embeddings.create(model=CHAT, input="x"))
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    refused(bad, "messages", lambda: ask(messages=[{"role": "user", "content": image}]))


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


def respond(**changes):
    request = {"model": CHAT, "input": QUESTION[0]["content"], "max_output_tokens": 16, "temperature": 0} | changes
    return client.responses.create(**request)


@check
def responses_are_given_streamed_and_continued():
    answer = respond(instructions="You answer briefly.")
    assert answer.status == "incomplete" and answer.output_text and answer.usage.total_tokens > 0, answer
    assert "Paris" in respond().output_text
    events = list(respond(stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == respond().output_text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    follow = respond(input="And of Italy?", previous_response_id=answer.id)
    assert follow.usage.input_tokens > answer.usage.input_tokens
    client.responses.delete(answer.id)
    refused(openai.NotFoundError, None, lambda: client.responses.retrieve(answer.id))
    refused(openai.BadRequestError, "previous_response_id", lambda: respond(previous_response_id=answer.id))


@check
def responses_call_tools():
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    request = dict(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    call = next(item for item in respond(**request).output if item.type == "function_call")
    assert call.name == "weather" and json.loads(call.arguments)["unit"] in ("C", "F"), call
    events = list(respond(stream=True, **request))
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(pieces)["unit"] in ("C", "F"), pieces
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    history = [{"role": "user", "content": "Weather?"}, call.model_dump(exclude_none=True), result]
    assert respond(input=history, tools=[tool]).output
    form = {"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}}
    assert set(json.loads(respond(text=form, max_output_tokens=200).output_text)) == {"city", "unit"}


@check
def calls_are_streamed_and_answered():
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    with client.chat.completions.stream(
        model=CHAT, messages=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_tokens=200, temperature=0,
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments)["unit"] in ("C", "F"), call
    result = {"role": "tool", "tool_call_id": call.id, "content": "12"}
    history = [*QUESTION, message.model_dump(exclude_none=True), result]
    assert ask(messages=history, tools=[tool], max_tokens=4).usage.completion_tokens > 0


@check
def audio_of_a_live_session_becomes_items():
    # The models of this server transcribe nothing, so transcripts are off.
    settings = {"format": {"type": "audio/pcm", "rate": 24000}, "transcription": None, "turn_detection": None}
    with client.realtime.connect(model=CHAT, extra_query={"intent": "transcription"}) as connection:
        def received(kind):
            for event in connection:
                if event.type == kind:
                    return event
            raise AssertionError(f"no {kind}")

        created = received("session.created")
        assert created.session.type == "transcription", created
        assert created.session.audio.input.turn_detection.type == "server_vad", created
        connection.session.update(session={"type": "transcription", "audio": {"input": settings}})
        assert received("session.updated").session.audio.input.transcription is None
        connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48000)).decode())
        connection.input_audio_buffer.commit()
        committed = received("input_audio_buffer.committed")
        item = received("conversation.item.done").item
        assert item.id == committed.item_id and item.content[0].type == "input_audio", item
        connection.response.create()
        error = received("error").error
        assert error.code == "unknown_event" and "type realtime" in error.message, error
        connection.input_audio_buffer.append(audio="AAAA")
        connection.input_audio_buffer.clear()
        assert received("input_audio_buffer.cleared")


if __name__ == "__main__":
    sys.exit(run())
