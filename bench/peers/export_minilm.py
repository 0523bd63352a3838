#!/usr/bin/env python3
"""Writes all-MiniLM-L6-v2 as ONNX graphs in f32, from its safetensors file.

    python export_minilm.py FOLDER OUT

The published package has no graph, and PyTorch's exporter needs PyTorch. `OUT/standard.onnx` has standard operators in
the form that PyTorch's exporter writes, which runtimes recognise and fuse. `OUT/fused.onnx` is the same graph after ONNX
Runtime's own optimizer for BERT, which fuses attention. Both include the mean over the tokens and the scaling to unit
length.

    input_ids [N, S], attention_mask [N, S] ── vectors [N, 384]
"""

import json
import math
import sys
from pathlib import Path

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers import optimizer

# What attention adds to the score of padding. ONNX Runtime's fusion expects this number.
PENALTY = -10000.0


def read(path: Path) -> dict[str, numpy.ndarray]:
    """The f32 tensors of a safetensors file."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = numpy.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors


class Graph:
    """Nodes and initializers; each method returns the name of a value."""

    def __init__(self, tensors: dict[str, numpy.ndarray], config: dict):
        self.tensors, self.config = tensors, config
        self.nodes, self.initializers, self.shapes = [], [], []

    def constant(self, values, dtype) -> str:
        name = f"constant/{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(numpy.array(values, dtype), name))
        return name

    def scalar(self, value: float) -> str:
        return self.constant(value, numpy.float32)

    def ints(self, *values: int) -> str:
        return self.constant(values, numpy.int64)

    def node(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"{kind}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, value: str, prefix: str) -> str:
        weight = self.constant(self.tensors[f"{prefix}.weight"].T, numpy.float32)
        bias = self.constant(self.tensors[f"{prefix}.bias"], numpy.float32)
        return self.node("Add", self.node("MatMul", value, weight), bias)

    def norm(self, value: str, prefix: str) -> str:
        scale = self.constant(self.tensors[f"{prefix}.weight"], numpy.float32)
        bias = self.constant(self.tensors[f"{prefix}.bias"], numpy.float32)
        return self.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=self.config["layer_norm_eps"])

    def embed(self, ids: str) -> str:
        words = self.constant(self.tensors["embeddings.word_embeddings.weight"], numpy.float32)
        # Every token has the first type, so its row is part of the positions.
        types = self.tensors["embeddings.token_type_embeddings.weight"]
        positions = self.tensors["embeddings.position_embeddings.weight"] + types[0]
        length = self.node("Shape", ids, start=1, end=2)
        rows = self.node("Slice", self.constant(positions, numpy.float32), self.ints(0), length, self.ints(0))
        total = self.node("Add", self.node("Gather", words, ids), rows)
        # ONNX Runtime fuses a sum with a norm only if both addends have the same shape, which the slice hides.
        shape = ["n", "s", self.config["hidden_size"]]
        self.shapes.append(helper.make_tensor_value_info(total, TensorProto.FLOAT, shape))
        return self.norm(total, "embeddings.LayerNorm")

    def penalty(self, mask: str) -> str:
        """What attention adds to its scores, `[N, 1, 1, S]`."""
        wide = self.node("Unsqueeze", self.node("Unsqueeze", mask, self.ints(1)), self.ints(2))
        wide = self.node("Cast", wide, to=TensorProto.FLOAT)
        return self.node("Mul", self.node("Sub", self.scalar(1.0), wide), self.scalar(PENALTY))

    def attention(self, value: str, penalty: str, prefix: str) -> str:
        hidden, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        parts = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            rows = self.linear(value, f"{prefix}.self.{part}")
            rows = self.node("Reshape", rows, self.ints(0, 0, heads, hidden // heads))
            parts[part] = self.node("Transpose", rows, perm=order)
        scores = self.node("MatMul", parts["query"], parts["key"])
        scores = self.node("Div", scores, self.scalar(math.sqrt(hidden // heads)))
        weights = self.node("Softmax", self.node("Add", scores, penalty), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", weights, parts["value"]), perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, self.ints(0, 0, hidden))
        return self.linear(mixed, f"{prefix}.output.dense")

    def gelu(self, value: str) -> str:
        half = self.node("Erf", self.node("Div", value, self.scalar(math.sqrt(2.0))))
        product = self.node("Mul", value, self.node("Add", half, self.scalar(1.0)))
        return self.node("Mul", product, self.scalar(0.5))

    def layer(self, value: str, penalty: str, prefix: str) -> str:
        attended = self.attention(value, penalty, f"{prefix}.attention")
        value = self.norm(self.node("Add", attended, value), f"{prefix}.attention.output.LayerNorm")
        inner = self.gelu(self.linear(value, f"{prefix}.intermediate.dense"))
        inner = self.linear(inner, f"{prefix}.output.dense")
        return self.norm(self.node("Add", inner, value), f"{prefix}.output.LayerNorm")

    def pool(self, value: str, mask: str) -> str:
        """The mean over the tokens of each text, scaled to unit length."""
        mask = self.node("Cast", self.node("Unsqueeze", mask, self.ints(2)), to=TensorProto.FLOAT)
        total = self.node("ReduceSum", self.node("Mul", value, mask), self.ints(1), keepdims=0)
        mean = self.node("Div", total, self.node("ReduceSum", mask, self.ints(1), keepdims=0))
        return self.node("Div", mean, self.node("ReduceL2", mean, self.ints(1), keepdims=1))


def write(folder: Path, out: Path):
    config = json.loads((folder / "config.json").read_text())
    graph = Graph(read(folder / "model.safetensors"), config)
    value, penalty = graph.embed("input_ids"), graph.penalty("attention_mask")
    for layer in range(config["num_hidden_layers"]):
        value = graph.layer(value, penalty, f"encoder.layer.{layer}")
    vectors = graph.pool(value, "attention_mask")
    graph.nodes.append(helper.make_node("Identity", [vectors], ["vectors"]))
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "s"]) for name in names]
    output = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["n", hidden])
    whole = helper.make_graph(
        graph.nodes, "all-MiniLM-L6-v2", inputs, [output], graph.initializers, value_info=graph.shapes
    )
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, out / "standard.onnx")
    options = {"model_type": "bert", "num_heads": heads, "hidden_size": hidden, "opt_level": 0}
    fused = optimizer.optimize_model(str(out / "standard.onnx"), **options)
    found = fused.get_fused_operator_statistics()["Attention"]
    if found != config["num_hidden_layers"]:
        sys.exit(f"expected {config['num_hidden_layers']} fused attentions, found {found}")
    fused.save_model_to_file(str(out / "fused.onnx"))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
