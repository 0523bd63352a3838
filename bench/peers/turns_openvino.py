#!/usr/bin/env python3
"""A conversation of growing turns in OpenVINO GenAI's continuous batching, which keeps the prefixes of its prompts.

    python turns_openvino.py FOLDER PLAN.json --threads 2

The plan has the tokens of an answer and, for each conversation, the texts of its turns. A prompt is the conversation so
far, answers included, and the next text. Prints one line of JSON: the seconds of each turn of the last conversation.
"""

import json
import time

from batching import prepare


def converse(pipeline, generation, texts: list[str]) -> list[float]:
    conversation, seconds = "", []
    for text in texts:
        conversation += text
        begun = time.perf_counter()
        answer = pipeline.generate([conversation], [generation])[0]
        seconds.append(time.perf_counter() - begun)
        conversation += answer.m_generation_ids[0]
    return seconds


def main():
    plan, pipeline, generation = prepare(__doc__, enable_prefix_caching=True)
    generation.apply_chat_template = False
    times = [converse(pipeline, generation, texts) for texts in plan["conversations"]]
    print(json.dumps(times[-1]), flush=True)


if __name__ == "__main__":
    main()
