"""Records a terminal session with `narthex` as an animated SVG: an error 1002 that is found, fixed and confirmed.

Needs the package `onnx`, the program `narthex` and a store with the runtimes `cpu` and `qnn`:

    pip install onnx
    python3 docs/recording/record.py --narthex target/release/narthex --out docs/src/recording.svg

The commands run, and the SVG has their output. Lines appear after the time that the commands took, with pauses of at most
two seconds.
"""

import argparse
import html
import os
import subprocess
import tempfile
import textwrap
import time

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

COLUMNS = 100
LINE_HEIGHT = 18
CHARACTER_WIDTH = 7.8
MARGIN = 14
TYPING_SECONDS = 0.03
MAX_PAUSE = 2.0
COMMANDS = [
    "narthex check block.onnx --set batch=1 | grep -E '^block|   at|   fix|^after'",
    "narthex check block.onnx --set batch=1 --fix fixed | grep -E '^wrote|^fixed|nodes on the NPU  *8'",
]


def block(path):
    """Writes a norm and a projection of a Llama model as PyTorch's exporter writes them."""
    rng = numpy.random.default_rng(0)
    weights = {
        "norm": rng.normal(size=[64]).astype(numpy.float32),
        "projection": rng.normal(size=[64, 64]).astype(numpy.float32),
        "two": numpy.array(2, numpy.float32),
        "epsilon": numpy.array(1e-5, numpy.float32),
        "axes": numpy.array([-1], numpy.int64),
    }
    nodes = [
        ("Pow", ["x", "two"], "square"),
        ("ReduceMean", ["square", "axes"], "mean"),
        ("Add", ["mean", "epsilon"], "shifted"),
        ("Sqrt", ["shifted"], "root"),
        ("Reciprocal", ["root"], "scale"),
        ("Mul", ["x", "scale"], "scaled"),
        ("Mul", ["norm", "scaled"], "normed"),
        ("MatMul", ["normed", "projection"], "y"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node(operator, inputs, [output], name=f"/norm/{operator}_{index}")
            for index, (operator, inputs, output) in enumerate(nodes)
        ],
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16, 64])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def session(narthex, folder):
    """Runs the commands. Returns lines with the seconds at which they appear, and whether they are commands."""
    now = 0.5
    lines = []
    for command in COMMANDS:
        lines.append((now, "$ " + command, True))
        now += TYPING_SECONDS * len(command)
        started = time.monotonic()
        path = os.pathsep.join([os.path.dirname(narthex), os.environ["PATH"]])
        run = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        now += min(time.monotonic() - started, MAX_PAUSE)
        for line in run.stdout.rstrip().splitlines():
            indent = len(line) - len(line.lstrip())
            rest = " " * min(indent + 2, COLUMNS // 2)
            for part in textwrap.wrap(line, COLUMNS, subsequent_indent=rest, drop_whitespace=False) or [""]:
                lines.append((now, part, False))
        now += MAX_PAUSE
    return lines


def svg(lines):
    width = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    rows = []
    for number, (seconds, text, is_command) in enumerate(lines):
        y = MARGIN + (number + 0.75) * LINE_HEIGHT
        kind = "command" if is_command else "output"
        rows.append(
            f'<text class="{kind}" x="{MARGIN}" y="{y:.1f}" style="animation-delay:{seconds:.2f}s" '
            f'xml:space="preserve">{html.escape(text)}</text>'
        )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
            "<title>narthex check finds the nodes that cause error 1002, fixes them and confirms the fix</title>",
            "<style>",
            "text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #d4d4d4; opacity: 0; "
            "animation: appear 0.01s linear forwards }",
            ".command { fill: #9cdcfe; font-weight: bold }",
            "@keyframes appear { to { opacity: 1 } }",
            "@media (prefers-reduced-motion) { text { opacity: 1; animation: none } }",
            "</style>",
            '<rect width="100%" height="100%" rx="8" fill="#1e1e1e"/>',
            *rows,
            "</svg>",
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--narthex", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        block(os.path.join(folder, "block.onnx"))
        lines = session(os.path.abspath(arguments.narthex), folder)
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(svg(lines))


if __name__ == "__main__":
    main()
