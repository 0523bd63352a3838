#!/usr/bin/env python3
"""Writes a compiled package as a folder that onnxruntime-genai runs: the same weights and the same operators.

    python export_genai.py PACKAGE FOLDER

genai's own model builder makes the same kind of graph, but needs PyTorch. What differs from the package's graph is its
rim: tokens instead of their embeddings come in, an attention mask gives the lengths, and the last row's logits come out.

    input_ids ──── Gather(head) ── (q - 128) · scale ── embeds
              └─── last row ──────────────────────────── logits_rows
    attention_mask ── sum - 1 ────────────────────────── seqlens_k
                   └─ width ──────────────────────────── total_length
"""

import json
import shutil
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def constant(graph, name: str, dtype: int, shape: list[int], values: list) -> str:
    graph.initializer.append(helper.make_tensor(name, dtype, shape, values))
    return name


def embedding(graph) -> list:
    """Rows of the head's weight, which a model with a tied head looks tokens up in."""
    offset = constant(graph, "genai/offset", TensorProto.FLOAT, [], [128.0])
    width = constant(graph, "genai/width", TensorProto.INT64, [3], [0, 0, -1])
    last = constant(graph, "genai/last", TensorProto.INT64, [1], [-1])
    return [
        helper.make_node("Gather", ["/head/quants", "input_ids"], ["genai/q"]),
        helper.make_node("Cast", ["genai/q"], ["genai/qf"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["genai/qf", offset], ["genai/centred"]),
        helper.make_node("Gather", ["/head/scales", "input_ids"], ["genai/s"]),
        helper.make_node("Cast", ["genai/s"], ["genai/sf"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["genai/sf", last], ["genai/scale"]),
        helper.make_node("Mul", ["genai/centred", "genai/scale"], ["genai/blocks"]),
        helper.make_node("Reshape", ["genai/blocks", width], ["embeds"]),
    ]


def lengths(graph) -> list:
    """The past's length, the whole length, and the row whose logits are wanted."""
    one = constant(graph, "genai/one", TensorProto.INT64, [1], [1])
    index = constant(graph, "genai/index", TensorProto.INT64, [], [1])
    return [
        helper.make_node("ReduceSum", ["attention_mask", one], ["genai/sum"], keepdims=0),
        helper.make_node("Sub", ["genai/sum", one], ["genai/before"]),
        helper.make_node("Cast", ["genai/before"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["genai/mask_shape"]),
        helper.make_node("Gather", ["genai/mask_shape", index], ["genai/total"]),
        helper.make_node("Cast", ["genai/total"], ["total_length"], to=TensorProto.INT32),
        helper.make_node("Shape", ["input_ids"], ["genai/ids_shape"]),
        helper.make_node("Gather", ["genai/ids_shape", one], ["genai/new"]),
        helper.make_node("Sub", ["genai/new", one], ["logits_rows"]),
    ]


def rewrite(model):
    """Gives the graph genai's inputs and outputs, for one sequence at a time."""
    graph = model.graph
    inner = {"embeds", "seqlens_k", "total_length", "logits_rows"}
    kept = [value for value in graph.input if value.name not in inner]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
    nodes = embedding(graph) + lengths(graph) + list(graph.node)
    vocab = next(value for value in graph.output if value.name == "logits").type.tensor_type.shape.dim[1].dim_value
    for node in nodes:
        if "logits" in node.output:
            node.output[list(node.output).index("logits")] = "genai/logits"
    first = constant(graph, "genai/first", TensorProto.INT64, [1], [0])
    nodes.append(helper.make_node("Unsqueeze", ["genai/logits", first], ["logits"]))
    present = [value for value in graph.output if value.name != "logits"]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, vocab])
    for field, values in [(graph.input, [ids, mask, *kept]), (graph.output, [logits, *present]), (graph.node, nodes)]:
        del field[:]
        field.extend(values)


def config(manifest: dict) -> dict:
    """genai_config.json for a manifest."""
    architecture, tokenizer = manifest["architecture"], manifest["tokenizer"]
    attention = architecture["layers"][0]["attention"]
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": attention["head_size"],
        "hidden_size": architecture["hidden"],
        "num_attention_heads": attention["heads"],
        "num_hidden_layers": len(architecture["layers"]),
        "num_key_value_heads": attention["kv_heads"],
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past.%d.key",
            "past_value_names": "past.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    model = {
        "type": "llama",
        "bos_token_id": tokenizer["stop"][0],
        "eos_token_id": tokenizer["stop"],
        "pad_token_id": tokenizer["stop"][0],
        "vocab_size": architecture["vocab"],
        "context_length": manifest["max_length"],
        "decoder": decoder,
    }
    return {"model": model, "search": {"past_present_share_buffer": True, "max_length": manifest["max_length"]}}


def main():
    package, folder = Path(sys.argv[1]), Path(sys.argv[2])
    manifest = json.loads((package / "manifest.json").read_text())
    encoding = manifest["tables"][0]["encoding"]["type"]
    if encoding != "w8":
        sys.exit(f"expected a package with a tied head in 8 bits, found a table of type {encoding}")
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(package / "model.onnx", load_external_data=False)
    rewrite(model)
    shutil.copyfile(package / "model.onnx.data", folder / "model.onnx.data")
    onnx.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(config(manifest), indent=2))


if __name__ == "__main__":
    main()
