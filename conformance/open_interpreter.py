"""Open Interpreter with function calling against a live Narthex server.

    python open_interpreter.py http://127.0.0.1:8000     # `cargo xtask clients` installs the pinned version

Prints a line per check and a count; exits 1 where one failed. Needs the model smollm2:135m. The first call is forced, because
the model is too small to choose a tool by itself. Its code is not run.
"""
import os
import sys

# LiteLLM reads it when it is imported, and fetches prices without it.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from interpreter import interpreter

from checks import check, run

ROOT = sys.argv[1]


@check
def open_interpreter_calls_its_function_and_reads_the_result():
    ran = []

    def instead_of_running(language, code, **_):
        ran.append((language, code))
        yield {"type": "console", "format": "output", "content": "2"}

    interpreter.offline = interpreter.auto_run = True
    interpreter.computer.run = instead_of_running
    model = interpreter.llm
    model.model, model.api_base, model.api_key = "openai/smollm2:135m", ROOT + "/v1", "unused"
    model.supports_functions, model.temperature = True, 0
    model.context_window, model.max_tokens = 4096, 300
    complete = model.completions
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    model.completions = lambda **request: complete(**(request if ran else request | forced))
    parts = list(interpreter.chat("Run print(1+1) in Python.", display=False, stream=True))
    assert len(ran) == 1 and isinstance(ran[0][1], str), ran
    # The arguments of the call were streamed as code before it was run.
    assert sum(part["type"] == "code" and part["role"] == "assistant" for part in parts) > 2, parts
    assert any(part["role"] == "assistant" and part["type"] == "message" for part in parts[1:]), parts


if __name__ == "__main__":
    sys.exit(run())
