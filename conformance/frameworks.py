"""Frameworks for agents against a live Narthex server, each in its own normal flow: chat, streams, tools, typed answers.

    python frameworks.py http://127.0.0.1:8000      # `cargo xtask clients` installs the pinned frameworks

Prints a line per check and a count; exits 1 where one failed. Needs the models smollm2:135m and all-minilm-l6-v2. Calls are
forced where a framework allows it, because the model is too small to choose a tool by itself.
"""
import asyncio
import functools
import json
import operator
import os
import sys
from typing import Annotated, Literal

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


def weather(city: Annotated[str, Field(max_length=20)], unit: Literal["C", "F"]) -> str:
    """Returns the weather of a city."""
    return "12 degrees"


@check
def langchain_chats_streams_calls_and_embeds():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    model = ChatOpenAI(model=CHAT, base_url=BASE, temperature=0, max_tokens=100, max_retries=0)
    answer = model.invoke(QUESTION)
    assert "Paris" in answer.content and answer.usage_metadata["total_tokens"] > 0, answer
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == answer.content
    forced = model.bind_tools([Weather], tool_choice="Weather")
    asked = forced.invoke(QUESTION)
    call = asked.tool_calls[0]
    assert call["name"] == "Weather" and call["args"]["unit"] in ("C", "F"), call
    pieces = list(forced.stream(QUESTION))
    assert sum(bool(piece.tool_call_chunks) for piece in pieces) > 2, pieces
    streamed = functools.reduce(operator.add, pieces).tool_calls[0]
    assert (streamed["name"], streamed["args"]) == (call["name"], call["args"]), streamed
    history = [HumanMessage(QUESTION), asked, ToolMessage("12 degrees", tool_call_id=call["id"])]
    answer = model.bind_tools([Weather]).invoke(history)
    assert answer.content and answer.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"], answer
    assert model.with_structured_output(Weather).invoke(QUESTION).unit in ("C", "F")
    texts = OpenAIEmbeddings(model=EMBEDDING, base_url=BASE, check_embedding_ctx_length=False)
    assert len(texts.embed_query("a cat")) == 384


@check
def langchain_speaks_responses():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model=CHAT, base_url=BASE, temperature=0, max_tokens=60, use_responses_api=True)
    answer = model.invoke(QUESTION)
    assert "Paris" in answer.text
    assert functools.reduce(operator.add, model.stream(QUESTION)).text == answer.text
    forced = model.bind_tools([Weather], tool_choice="Weather")
    call = forced.invoke(QUESTION).tool_calls[0]
    streamed = functools.reduce(operator.add, forced.stream(QUESTION)).tool_calls[0]
    assert streamed["name"] == "Weather" and streamed["args"] == call["args"], (call, streamed)


@check
def llama_index_chats_streams_calls_and_embeds():
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    settings = dict(api_base=BASE, api_key="unused", is_chat_model=True, temperature=0, max_tokens=60)
    model = OpenAILike(model=CHAT, is_function_calling_model=True, context_window=2048, **settings)
    assert "Paris" in model.complete(QUESTION).text
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert "Paris" in list(model.stream_chat(messages))[-1].message.content
    tools = [FunctionTool.from_defaults(weather, fn_schema=Weather)]
    request = dict(tools=tools, user_msg=QUESTION, tool_required=True)
    call = model.get_tool_calls_from_response(model.chat_with_tools(**request))[0]
    assert call.tool_name == "weather" and call.tool_kwargs["unit"] in ("C", "F"), call
    pieces = list(model.stream_chat_with_tools(**request))
    streamed = model.get_tool_calls_from_response(pieces[-1])[0]
    assert len(pieces) > 2 and streamed.tool_kwargs == call.tool_kwargs, pieces
    assert model.predict_and_call(**request).response == "12 degrees"

    async def run():
        run = FunctionAgent(tools=tools, llm=model, initial_tool_choice="weather").run(QUESTION)
        return [type(event).__name__ async for event in run.stream_events()], await run

    events, final = asyncio.run(run())
    assert len(final.tool_calls) == 1 and events.count("ToolCallResult") == 1, final
    assert final.response.content and events.count("AgentStream") > 4, (final, events)
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
    forced = dict(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    called = litellm.completion(**request, **forced)
    arguments = called.choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments)["unit"] in ("C", "F"), called
    chunks = list(litellm.completion(**request, **forced, stream=True))
    assert sum(bool(chunk.choices[0].delta.tool_calls) for chunk in chunks) > 2, chunks
    call = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    assert (call.name, call.arguments) == ("weather", arguments), call
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 degrees"}
    history = {"messages": [*messages, message.model_dump(), result]}
    final = litellm.completion(**request | history, tools=[tool], max_tokens=60)
    assert final.choices[0].message.content and final.usage.prompt_tokens > called.usage.prompt_tokens, final
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
def instructor_gives_typed_answers_whole_and_in_parts():
    import instructor
    import openai

    messages = [{"role": "user", "content": QUESTION}]
    request = dict(model=CHAT, messages=messages, response_model=Weather, temperature=0, max_tokens=200, max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(), mode=mode)
        found = client.chat.completions.create(**request)
        assert found.unit in ("C", "F"), found
        parts = list(client.chat.completions.create_partial(**request))
        assert any(part.unit is None for part in parts), parts
        assert parts[-1].model_dump() == found.model_dump(), (parts[-1], found)


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

    async def streamed(agent):
        async with agent.run_stream(QUESTION) as result:
            return [output async for output in result.stream_output(debounce_by=None)]

    texts = asyncio.run(streamed(Agent(model, model_settings=settings)))
    assert len(texts) > 2 and "Paris" in texts[-1], texts
    for agent in (typed, called):
        outputs = asyncio.run(streamed(agent))
        assert outputs[-1] == agent.run_sync(QUESTION).output, outputs


@check
def pydantic_ai_calls_a_tool_whole_and_streamed():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    ran = []

    def settings(context):
        # Every later answer would be a call too.
        first = {"tool_choice": ["look_up"], "parallel_tool_calls": False}
        return {"temperature": 0, "max_tokens": 200} | (first if context.run_step == 1 else {})

    model = OpenAIChatModel(CHAT, provider=OpenAIProvider(base_url=BASE, api_key="unused"))
    agent = Agent(model, model_settings=settings)

    @agent.tool_plain
    def look_up(city: Annotated[str, Field(max_length=20)], unit: Literal["C", "F"]) -> str:
        """Returns the weather of a city."""
        ran.append((city, unit))
        return "12 degrees"

    answer = agent.run_sync(QUESTION).output

    async def streamed():
        async with agent.run_stream(QUESTION) as result:
            return [text async for text in result.stream_text(debounce_by=None)]

    texts = asyncio.run(streamed())
    assert len(ran) == 2 and ran[0] == ran[1], ran
    assert answer and texts[-1] == answer, (answer, texts)


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
            return [event.type async for event in result.stream_events()]

        before = len(called)
        assert asyncio.run(streamed()).count("raw_response_event") > 5
        assert len(called) > before, "no call was made in the stream"


@check
def agents_with_the_defaults_of_their_frameworks_end():
    """The frameworks send strict tools and let the model choose. Small models may answer without a call."""
    import agents
    import openai
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agents.set_tracing_disabled(True)
    called = []

    def weather(city: str) -> str:
        """Returns the weather of a city."""
        called.append(city)
        return "12 degrees"

    client = openai.AsyncOpenAI()
    settings = agents.ModelSettings(temperature=0, max_tokens=200)
    for model in (agents.OpenAIResponsesModel(CHAT, client), agents.OpenAIChatCompletionsModel(CHAT, client)):
        tools = [agents.function_tool(weather)]
        agent = agents.Agent(name="a", instructions="Be brief.", model=model, tools=tools, model_settings=settings)
        try:
            answer = agents.Runner.run_sync(agent, QUESTION, max_turns=3).final_output
        except agents.MaxTurnsExceeded:
            answer = "the model called the tool in every turn"
        assert answer, called
    model = OpenAIChatModel(CHAT, provider=OpenAIProvider(base_url=BASE, api_key="unused"))
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 200})
    agent.tool_plain(weather)
    assert agent.run_sync(QUESTION).output, called
    assert all(isinstance(city, str) for city in called), called


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
            # Otherwise every later answer would be a call too.
            assistant.llm.generate_cfg["tool_choice"] = "auto"
            return "12 degrees"

    settings = {"temperature": 0, "max_tokens": 200}
    model = {"model": CHAT, "model_server": BASE, "api_key": "unused"}
    forced = settings | {"use_raw_api": True, "tool_choice": "required", "parallel_tool_calls": False}
    assistant = Assistant(llm=model | {"generate_cfg": forced}, function_list=["weather"])
    question = [{"role": "user", "content": QUESTION}]
    pieces = list(assistant.run(messages=question))
    assert len(called) == 1 and isinstance(called[0]["city"], str), called
    roles = [message["role"] for message in pieces[-1]]
    assert len(pieces) > 4 and roles == ["assistant", "function", "assistant"], pieces[-1:]
    assert pieces[-1][-1]["content"], pieces[-1]
    plain = Assistant(llm=model | {"generate_cfg": settings})
    answers = list(plain.run(messages=question))
    assert len(answers) > 1 and "Paris" in answers[-1][-1]["content"], answers[-1:]


if __name__ == "__main__":
    sys.exit(run())
