"""The command line, the pipeline and the settings that the scripts with OpenVINO GenAI's continuous batching share."""

import argparse
import json

import openvino_genai


def prepare(about: str, **settings):
    """Returns the plan of the command line, a pipeline with these settings of the scheduler, and greedy generation."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folder")
    parser.add_argument("plan")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    with open(options.plan, encoding="utf-8") as file:
        plan = json.load(file)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 1
    for name, value in settings.items():
        setattr(scheduler, name, value)
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        options.folder, scheduler, "CPU", {"INFERENCE_NUM_THREADS": options.threads}
    )
    generation = openvino_genai.GenerationConfig()
    generation.max_new_tokens = generation.min_new_tokens = plan["tokens"]
    generation.ignore_eos = True
    generation.do_sample = False
    return plan, pipeline, generation
