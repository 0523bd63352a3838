"""What transformers makes of conversations with the chat templates of many families.

    python templates.py FOLDER OUT.json

renders every conversation below with every FOLDER/*.jinja and writes OUT.json: the conversations, and for each template
a text or a refusal for each of them. Needs transformers and jinja2; nothing of Narthex runs here. What fails in the
reference other than by `raise_exception` is written as null.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from transformers.utils import chat_template_utils as reference

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather at a "place" – in °C <now> & later',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A city, e.g. Brno"},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["place"],
        },
    },
}
NOTHING = {
    "type": "function",
    "function": {"name": "stop", "description": "Ends it.", "parameters": {"type": "object", "properties": {}}},
}


def said(role, content, **more):
    return {"role": role, "content": content} | more


def call(name, arguments, id):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


USER = said("user", "  Kde pramení Vltava?\n")
SYSTEM = said("system", "Answer <briefly> & don't \"guess\".\n")
TURNS = [USER, said("assistant", "On Šumava's slopes: 1 172 m 🙂 "), said("user", "it's\tlong?")]
ONE = said("assistant", "", tool_calls=[call("get_weather", {"place": "Brno – \"střed\"", "days": 2}, "abc123XYZ")])
TWO = said("assistant", "Both.", tool_calls=[
    call("get_weather", {"place": "Praha", "unit": "C", "deep": {"a": [1, 2.5, None, True]}}, "callAAAA1"),
    call("stop", {}, "callBBBB2"),
])
RESULT = said("tool", '{"t": 21.5, "sky": "jasno"}', name="get_weather", tool_call_id="abc123XYZ")
RESULTS = [said("tool", "18 °C", name="get_weather", tool_call_id="callAAAA1"),
           said("tool", "done", name="stop", tool_call_id="callBBBB2")]
PICTURE = {"type": "image"}
SEEN = [
    said("system", [{"type": "text", "text": "Be brief."}]),
    said("user", [{"type": "text", "text": "Compare "}, PICTURE, {"type": "text", "text": " with:\n"}, PICTURE]),
    said("assistant", "A cat, a dog."),
    said("user", [PICTURE, {"type": "text", "text": "And this?"}]),
]
THOUGHT = said("assistant", "<think>\nA river…\n</think>\n\nIt is long.")

CONVERSATIONS = {
    "user": dict(messages=[USER]),
    "system": dict(messages=[SYSTEM, USER]),
    "turns": dict(messages=[SYSTEM, *TURNS]),
    "left": dict(messages=TURNS[:2], add_generation_prompt=False),
    "thought": dict(messages=[USER, THOUGHT, TURNS[2]]),
    "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER, NOTHING]),
    "call": dict(messages=[USER, ONE], tools=[WEATHER], add_generation_prompt=False),
    "result": dict(messages=[SYSTEM, USER, ONE, RESULT], tools=[WEATHER]),
    "results": dict(messages=[USER, TWO, *RESULTS, TURNS[1], TURNS[2]], tools=[WEATHER, NOTHING]),
    "early": dict(messages=[TURNS[1], USER]),
    "twice": dict(messages=[USER, USER]),
    "late": dict(messages=[USER, SYSTEM]),
    "picture": dict(messages=[SEEN[3]]),
    "pictures": dict(messages=SEEN),
}

# Conversations for the templates that read parts.
OF_PARTS = {"picture", "pictures"}
READ_PARTS = {"gemma3", "smolvlm"}


class Day(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 21)


def rendered(template, conversation):
    inputs = {"add_generation_prompt": True, "tools": None, "documents": None} | conversation | SPECIALS
    refused = []

    def refuse(message):
        refused.append(message)
        raise jinja2.exceptions.TemplateError(message)

    template.globals["raise_exception"] = refuse
    try:
        return {"text": template.render(**inputs)}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        if not refused:
            print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return {"refused": refused[0]} if refused else None


def main():
    reference.datetime = Day
    found = {}
    for path in sorted(Path(sys.argv[1]).glob("*.jinja")):
        print(path.name, file=sys.stderr)
        template = reference._compile_jinja_template(path.read_text())
        found[path.stem] = {
            name: rendered(template, each)
            for name, each in CONVERSATIONS.items()
            if name not in OF_PARTS or path.stem in READ_PARTS
        }
    whole = {"conversations": CONVERSATIONS, "templates": found}
    Path(sys.argv[2]).write_text(json.dumps(whole, ensure_ascii=False, indent=0) + "\n")


main()
