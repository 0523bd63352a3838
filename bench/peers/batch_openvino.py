#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching under concurrent clients, without HTTP.

    python batch_openvino.py FOLDER PLAN.json --threads 2

The plan has the tokens of an answer and, for each measurement, the prompts of each client. A client sends its next prompt
when its last answer is complete. Prints one line of JSON: for each measurement the tokens per second of all clients, and
the slowest client's rate divided by the median rate.
"""

import json
import statistics
import time

import openvino_genai

from batching import prepare


class Client:
    """The remaining prompts of a client and the answer that is under way."""

    def __init__(self, prompts: list[str]):
        self.prompts = list(reversed(prompts))
        self.handle = None
        self.tokens = 0
        self.seconds = 0.0


def run(pipeline, generation, clients: list[Client], numbers) -> dict[str, float]:
    begun = time.perf_counter()
    while True:
        for client in clients:
            if client.handle is None and client.prompts:
                client.handle = pipeline.add_request(next(numbers), client.prompts.pop(), generation)
        if not pipeline.has_non_finished_requests():
            break
        pipeline.step()
        for client in clients:
            handle = client.handle
            if handle is not None and handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                client.tokens += sum(len(output.generated_ids) for output in handle.read_all())
                client.seconds = time.perf_counter() - begun
                client.handle = None
    rates = [client.tokens / client.seconds for client in clients]
    total = sum(client.tokens for client in clients) / max(client.seconds for client in clients)
    return {"tokens_per_second": total, "slowest_share": min(rates) / statistics.median(rates)}


def main():
    plan, pipeline, generation = prepare(__doc__, max_num_seqs=16)
    numbers = iter(range(1 << 30))
    run(pipeline, generation, [Client(["Warm up."])], numbers)
    measurements = [[Client(prompts) for prompts in clients] for clients in plan["measurements"]]
    print(json.dumps([run(pipeline, generation, clients, numbers) for clients in measurements]), flush=True)


if __name__ == "__main__":
    main()
