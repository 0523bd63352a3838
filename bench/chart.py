"""Draws the speeds of several models in one SVG, from recorded runs of `cargo xtask peers`.

    python3 bench/chart.py docs/src/images/speed.svg bench/runs/A.json bench/runs/B.json

Each model has a group of bars for prefill and one for decode. The longest bar of a group has the full width, because the
speeds of small and large models differ too much for one scale. With `--check`, the file is compared and not written.
"""

import json
import sys
from html import escape

SIDES = {
    "narthex-w8": ("Narthex w8", "#2563a8"),
    "llama-q8_0": ("llama.cpp Q8_0", "#9a9a9a"),
    "narthex-w4": ("Narthex w4", "#2563a8"),
    "llama-q4_0": ("llama.cpp Q4_0", "#9a9a9a"),
    "genai-w4": ("onnxruntime-genai w4", "#9a9a9a"),
    "openvino-q4_1": ("OpenVINO GenAI Q4_1", "#9a9a9a"),
}
MODELS = {
    "smollm2:135m": "SmolLM2 135M",
    "random-0.5b": "Llama in the shape of Qwen 2.5 0.5B, random weights",
    "random-1b": "Llama in the shape of Llama 3.2 1B, random weights",
}
LABEL, BAR, FIGURE, ROW, TITLE = 160, 150, 60, 20, 30


def groups(records):
    """Yields the model, the numbers of tokens and the sides of every measurement."""
    for record in records:
        for run in record["speeds"]:
            sides = [side for side in run["sides"] if side["side"] in SIDES and side.get("speed")]
            yield run["model"], run["prompt_tokens"], run["decode_tokens"], sides


def bars(left, top, sides, phase):
    """Yields the elements of one group of bars, with lines from the smallest to the largest round."""
    longest = max(side["speed"][phase]["max"] for side in sides)
    for index, side in enumerate(sides):
        name, color = SIDES[side["side"]]
        speed = side["speed"][phase]
        y = top + index * ROW
        width, low, high = (BAR * speed[key] / longest for key in ("median", "min", "max"))
        if phase == "prefill":
            yield f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
        yield f'<rect x="{left}" y="{y + 2}" width="{width:.1f}" height="{ROW - 6}" fill="{color}"/>'
        yield f'<path d="M{left + low:.1f} {y + 9}H{left + high:.1f}" stroke="#202020"/>'
        yield f'<text x="{left + BAR + 6}" y="{y + 13}">{speed["median"]:.{0 if speed["median"] >= 100 else 1}f}</text>'


def draw(records):
    """Returns the SVG."""
    machine = {(record["machine"]["cpu"], record["machine"]["threads"]) for record in records}
    commits = {record["commit"] for record in records}
    if len(machine) != 1 or len(commits) != 1:
        sys.exit(f"expected records of one machine and one commit, found {machine} and {commits}")
    parts, top = [], 4
    columns = {"prefill": LABEL, "decode": LABEL + BAR + FIGURE + 10}
    for model, prompt, decode, sides in groups(records):
        title = f"{MODELS.get(model, model)}: prompts of {prompt} tokens, answers of {decode}"
        parts.append(f'<text x="8" y="{top + 18}" font-weight="bold">{escape(title)}</text>')
        for phase, left in columns.items():
            parts.append(f'<text x="{left}" y="{top + 36}" fill="#555555">{phase}, tokens/s</text>')
            parts.extend(bars(left, top + 42, sides, phase))
        top += 42 + ROW * len(sides) + TITLE - 14
    cpu, threads = machine.pop()
    dates = sorted({record["date"] for record in records})
    note = f"{cpu}, {threads} threads, {', '.join(dates)}; medians; lines: smallest to largest round"
    parts.append(f'<text x="8" y="{top + 14}" fill="#555555">{escape(note)}</text>')
    width, height = LABEL + 2 * (BAR + FIGURE) + 10, top + 24
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def main(arguments):
    check = "--check" in arguments
    out, *paths = [argument for argument in arguments if argument != "--check"]
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            records.append(json.load(file))
    svg = draw(records)
    if not check:
        with open(out, "w", encoding="utf-8") as file:
            file.write(svg)
        return
    with open(out, encoding="utf-8") as file:
        if file.read() != svg:
            sys.exit(f"{out} is not made from these records; run bench/chart.py without --check")


if __name__ == "__main__":
    main(sys.argv[1:])
