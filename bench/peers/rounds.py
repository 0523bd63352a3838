"""What every timed loop here has in common: its arguments, its prompts, its clock and its answer.

A loop is a program that loads a model, runs one repetition that is not counted and `--repeat` ones that are, and prints
one line of JSON: tokens a second of each repetition, the time of the load, and the versions that ran. `cargo xtask peers`
calls them in turn.
"""

import argparse
import json
import time


def arguments(model: str, about: str) -> argparse.Namespace:
    """Reads the command line; `model` says what the first argument names."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("model", help=model)
    parser.add_argument("--threads", type=int, required=True, help="threads that compute")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--decode", type=int, default=64, help="tokens generated after it")
    parser.add_argument("--repeat", type=int, default=3, help="counted repetitions")
    return parser.parse_args()


def prompt(length: int, number: int, vocab: int) -> list[int]:
    """The prompt of repetition `number`, the same as in `narthex bench`: spread over the vocabulary, no two alike."""
    return [(i * 7919 + (number + 1) * 104729) % vocab for i in range(length)]


class Clock:
    """Notes when tokens came."""

    def __init__(self):
        self.begun = time.perf_counter()
        self.first = None
        self.last = None
        self.tokens = 0

    def token(self):
        """A generated token is known."""
        self.last = time.perf_counter()
        if self.first is None:
            self.first = self.last
        self.tokens += 1

    def rates(self, prompt_tokens: int) -> tuple[float, float]:
        """Prompt tokens a second up to the first generated token, and generated ones after it."""
        return prompt_tokens / (self.first - self.begun), (self.tokens - 1) / (self.last - self.first)


def timed_load(load):
    """Calls `load`; returns the result and the milliseconds that it took."""
    begun = time.perf_counter()
    loaded = load()
    return loaded, (time.perf_counter() - begun) * 1e3


def rested(once, number: int):
    """Calls `once` when threads that spin after their last work sleep, as `narthex bench` does before each round."""
    time.sleep(0.1)
    return once(number)


def measure(options: argparse.Namespace, once, load_ms: float, versions: dict[str, str]):
    """Calls `once(number)`, which gives prefill and decode rates, and prints the answer."""
    rates = [rested(once, number) for number in range(options.repeat + 1)][1:]
    answer = {
        "prefill": [prefill for prefill, _ in rates],
        "decode": [decode for _, decode in rates],
        "load_ms": load_ms,
        "versions": versions,
    }
    print(json.dumps(answer), flush=True)
