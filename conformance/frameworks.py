"""Frameworks for agents against a live Narthex server, each in its own normal flow: chat, streams, tools, typed answers.

    python frameworks.py http://127.0.0.1:8000      # `cargo xtask clients` installs the pinned frameworks

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2. Calls are
forced where a framework allows it, because the model is too small to choose a tool by itself.
"""
import asyncio
import json
import os
import sys
from typing import Literal

from pydantic import BaseModel, Field

from checks import check, run

ROOT = sys.argv[1]
BASE = ROOT + "/v1"
CHAT, EMBEDDING = "smollm2:135m", "all-minilm-l6-v2"
QUESTION = "What is the capital of France?"
os.environ |= {"OPENAI_API_KEY": "unused", "OPENAI_BASE_URL": BASE, "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class Weather(BaseModel):
    """Weather of a city."""

    city: str = Field(max_length=20)
    unit: Literal["C", "F"]


@check
def langchain_chats_streams_calls_and_embeds():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    model = ChatOpenAI(model=CHAT, base_url=BASE, temperature=0, max_tokens=100, max_retries=0)
    answer = model.invoke(QUESTION)
    assert "Paris" in answer.content and answer.usage_metadata["total_tokens"] > 0, answer
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == answer.content
    call = model.bind_tools([Weather], tool_choice="Weather").invoke(QUESTION).tool_calls[0]
    assert call["name"] == "Weather" and call["args"]["unit"] in ("C", "F"), call
    assert model.with_structured_output(Weather).invoke(QUESTION).unit in ("C", "F")
    texts = OpenAIEmbeddings(model=EMBEDDING, base_url=BASE, check_embedding_ctx_length=False)
    assert len(texts.embed_query("a cat")) == 384


@check
def langchain_speaks_responses():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=CHAT, base_url=BASE, temperature=0, max_tokens=60, use_responses_api=True)
    assert "Paris" in model.invoke(QUESTION).text
    assert list(model.stream(QUESTION))


@check
def llama_index_chats_streams_and_embeds():
    from llama_index.core.llms import ChatMessage
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    settings = dict(api_base=BASE, api_key="unused", is_chat_model=True, temperature=0, max_tokens=60)
    model = OpenAILike(model=CHAT, is_function_calling_model=True, context_window=2048, **settings)
    assert "Paris" in model.complete(QUESTION).text
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert "Paris" in list(model.stream_chat(messages))[-1].message.content
    embedding = OpenAILikeEmbedding(model_name=EMBEDDING, api_base=BASE, api_key="unused")
    assert len(embedding.get_text_embedding("a cat")) == 384


@check
def litellm_chats_streams_calls_and_embeds():
    import litellm

    messages = [{"role": "user", "content": QUESTION}]
    request = dict(model=f"openai/{CHAT}", api_base=BASE, api_key="unused", messages=messages, temperature=0)
    answer = litellm.completion(**request, max_tokens=60)
    text = answer.choices[0].message.content
    assert "Paris" in text, answer
    chunks = litellm.completion(**request, max_tokens=60, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    tool = {"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}
    called = litellm.completion(**request, tools=[tool], tool_choice="required", max_tokens=200)
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["unit"] in ("C", "F"), called
    vectors = litellm.embedding(model=f"openai/{EMBEDDING}", api_base=BASE, api_key="unused", input=["a cat"])
    assert len(vectors.data[0]["embedding"]) == 384
    native = litellm.completion(model=f"ollama_chat/{CHAT}", api_base=ROOT, messages=messages, temperature=0, max_tokens=60)
    assert "Paris" in native.choices[0].message.content, native
    try:
        litellm.completion(**request | {"messages": [{"role": "user", "content": "word " * 9000}]})
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("a prompt that is too long was not recognised")


@check
def instructor_gives_typed_answers():
    import instructor
    import openai

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(), mode=mode)
        messages = [{"role": "user", "content": QUESTION}]
        found = client.chat.completions.create(
            model=CHAT, messages=messages, response_model=Weather, temperature=0, max_tokens=200, max_retries=0
        )
        assert found.unit in ("C", "F"), found


@check
def pydantic_ai_gives_texts_and_typed_answers():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(CHAT, provider=OpenAIProvider(base_url=BASE, api_key="unused"))
    settings = {"temperature": 0, "max_tokens": 200}
    assert "Paris" in Agent(model, model_settings=settings).run_sync(QUESTION).output
    typed = Agent(model, output_type=NativeOutput(Weather), model_settings=settings)
    assert typed.run_sync(QUESTION).output.unit in ("C", "F")
    called = Agent(model, output_type=Weather, model_settings=settings)
    assert called.run_sync(QUESTION).output.unit in ("C", "F")


@check
def openai_agents_call_tools_over_both_apis():
    import agents
    import openai

    agents.set_tracing_disabled(True)
    called = []

    @agents.function_tool
    def weather(city: str) -> str:
        """Returns the weather of a city."""
        called.append(city)
        return "12 degrees"

    client = openai.AsyncOpenAI()
    settings = agents.ModelSettings(temperature=0, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
    for model in (agents.OpenAIResponsesModel(CHAT, client), agents.OpenAIChatCompletionsModel(CHAT, client)):
        agent = agents.Agent(name="a", instructions="Be brief.", model=model, tools=[weather], model_settings=settings)
        before = len(called)
        assert agents.Runner.run_sync(agent, QUESTION, max_turns=4).final_output is not None
        assert len(called) > before, "no call was made"

        async def streamed():
            result = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
            return [event async for event in result.stream_events()]

        assert asyncio.run(streamed())


@check
def qwen_agent_s_assistant_calls_a_tool():
    from qwen_agent.agents import Assistant
    from qwen_agent.tools.base import BaseTool, register_tool

    called = []

    @register_tool("weather")
    class WeatherTool(BaseTool):
        description = "Returns the weather of a city."
        parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}

        def call(self, params, **kwargs):
            called.append(self._verify_json_format_args(params))
            return "12 degrees"

    settings = {"temperature": 0, "max_tokens": 200}
    model = {"model": CHAT, "model_server": BASE, "api_key": "unused"}
    forced = settings | {"use_raw_api": True, "tool_choice": "required", "parallel_tool_calls": False}
    assistant = Assistant(llm=model | {"generate_cfg": forced}, function_list=["weather"])
    question = [{"role": "user", "content": QUESTION}]
    for messages in assistant.run(messages=question):
        # Every later answer would be a call too.
        if messages[-1]["role"] == "function" and messages[-1]["content"]:
            break
    assert isinstance(called[0]["city"], str), called
    plain = Assistant(llm=model | {"generate_cfg": settings})
    answers = list(plain.run(messages=question))
    assert len(answers) > 1 and "Paris" in answers[-1][-1]["content"], answers[-1:]


if __name__ == "__main__":
    sys.exit(run())
