"""OpenAI's own Python client, and the question that its checks ask."""
import sys

import openai

CHAT, EMBEDDING = "smollm2:135m", "all-minilm-l6-v2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Session:
    """Connects to the server of the first argument. Answers have at most `max_tokens` tokens unless a check changes it."""

    def __init__(self, timeout, max_tokens):
        self.client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0, timeout=timeout)
        self.request = {"model": CHAT, "messages": QUESTION, "max_tokens": max_tokens, "temperature": 0}

    def ask(self, **changes):
        return self.client.chat.completions.create(**self.request | changes)
