"""A tiny random model in the layout of Moonshine's own package, and what that package makes of a generated sound with it.

    python moonshine.py

Needs onnx, onnxruntime and useful-moonshine-onnx; nothing of Narthex runs here. Writes the graphs and a tokenizer to the
folder `tiny` beside this file, and `golden.json` with the tokens and the text. The tests in
`crates/gateway/tests/gateway/moonshine.rs` generate the same sound.
"""

import json
import pathlib
import sys

import numpy
import onnx
from moonshine_onnx import MoonshineOnnxModel
from onnx import TensorProto, helper
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "nemo"))
from nemo import Weights, samples, value  # noqa: E402

HERE = pathlib.Path(__file__).parent
PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + [
    "▁", "▁the", "▁cat", "▁sat", "▁on", "s", "a", "▁mat", ".", ",", "ing", "▁two"]
VOCAB = len(PIECES)
LAYERS = 2
HEADS = 2
HEAD = 3
HIDDEN = HEADS * HEAD
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else 5


def tokenizer():
    """The structure of the published tokenizer: SentencePiece with bytes."""
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": id, "content": PIECES[id], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for id in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "vocab": {piece: id for id, piece in enumerate(PIECES)}, "merges": []},
    }


def encoder(path):
    """One row for 400 samples."""
    weights = Weights(3)
    weights("kernel", HIDDEN, 1, 400, scale=0.4)
    weights.constant("channel", numpy.array([1], dtype=numpy.int64))
    nodes = [
        helper.make_node("Unsqueeze", ["input_values", "channel"], ["sound"]),
        helper.make_node("Conv", ["sound", "kernel"], ["rows"], kernel_shape=[400], strides=[400]),
        helper.make_node("Sin", ["rows"], ["bounded"]),
        helper.make_node("Transpose", ["bounded"], ["last_hidden_state"], perm=[0, 2, 1]),
    ]
    save(path, nodes, [value("input_values", TensorProto.FLOAT, ["batch_size", "num_samples"])],
         [value("last_hidden_state", TensorProto.FLOAT, ["batch_size", "rows", HIDDEN])], weights)


def save(path, nodes, inputs, outputs, weights):
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, weights.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def heads(nodes, source, weight, result):
    nodes += [
        helper.make_node("MatMul", [source, weight], [f"{result}.flat"]),
        helper.make_node("Reshape", [f"{result}.flat", "by_head"], [f"{result}.split"]),
        helper.make_node("Transpose", [f"{result}.split"], [result], perm=[0, 2, 1, 3]),
    ]


def attend(nodes, query, key, value, result):
    nodes += [
        helper.make_node("Transpose", [key], [f"{result}.keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", [query, f"{result}.keys"], [f"{result}.scores"]),
        helper.make_node("Softmax", [f"{result}.scores"], [f"{result}.shares"], axis=-1),
        helper.make_node("MatMul", [f"{result}.shares", value], [f"{result}.heads"]),
        helper.make_node("Transpose", [f"{result}.heads"], [f"{result}.rows"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", [f"{result}.rows", "joined"], [result]),
    ]


def branch(reads_cache):
    """The body of the decoder with or without past keys and values."""
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x0"])]
    outputs = []
    for layer in range(LAYERS):
        own = f"present.{layer}.decoder"
        heads(nodes, f"x{layer}", f"query{layer}", f"q{layer}")
        for part in ("key", "value"):
            fresh = f"new{layer}.{part}" if reads_cache else f"{own}.{part}"
            heads(nodes, f"x{layer}", f"{part}{layer}", fresh)
            if reads_cache:
                past = f"past_key_values.{layer}.decoder.{part}"
                nodes.append(helper.make_node("Concat", [past, fresh], [f"{own}.{part}"], axis=2))
            sound = f"present.{layer}.encoder.{part}"
            if reads_cache:
                # As in the published graphs, these outputs are not used.
                nodes.append(helper.make_node("Identity", [f"past_key_values.{layer}.encoder.{part}"], [sound]))
            else:
                heads(nodes, "encoder_hidden_states", f"cross_{part}{layer}", sound)
        attend(nodes, f"q{layer}", f"{own}.key", f"{own}.value", f"own{layer}")
        nodes.append(helper.make_node("Add", [f"x{layer}", f"own{layer}"], [f"y{layer}"]))
        heads(nodes, f"y{layer}", f"cross_query{layer}", f"cq{layer}")
        sounds = [f"present.{layer}.encoder.{part}" for part in ("key", "value")]
        attend(nodes, f"cq{layer}", *sounds, f"cross{layer}")
        nodes.append(helper.make_node("Add", [f"y{layer}", f"cross{layer}"], [f"x{layer + 1}"]))
        outputs += [f"{own}.key", f"{own}.value", *sounds]
    nodes.append(helper.make_node("MatMul", [f"x{LAYERS}", "head"], ["logits"]))
    shapes = [value("logits", TensorProto.FLOAT, None)] + [value(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, f"branch{reads_cache:d}", [], shapes)
    return graph, ["logits", *outputs]


def decoder(path, seed):
    weights = Weights(seed)
    weights("table", VOCAB, HIDDEN, scale=2.0)
    head = weights.random.standard_normal((HIDDEN, VOCAB)).astype(numpy.float32)
    # Bytes are rare.
    head[:, 3:259] *= 0.1
    weights.constant("head", head)
    for layer in range(LAYERS):
        for name in ("query", "key", "value", "cross_query", "cross_key", "cross_value"):
            weights(f"{name}{layer}", HIDDEN, HIDDEN)
    weights.constant("by_head", numpy.array([0, 0, HEADS, HEAD], dtype=numpy.int64))
    weights.constant("joined", numpy.array([0, 0, HIDDEN], dtype=numpy.int64))
    (without, names), (with_cache, _) = branch(False), branch(True)
    inputs = [value("input_ids", TensorProto.INT64, ["batch_size", "tokens"]),
              value("encoder_hidden_states", TensorProto.FLOAT, ["batch_size", "rows", HIDDEN])]
    outputs = [value("logits", TensorProto.FLOAT, ["batch_size", "tokens", VOCAB])]
    for layer in range(LAYERS):
        for side in ("decoder", "encoder"):
            for part in ("key", "value"):
                shape = ["batch_size", HEADS, f"{side}_length", HEAD]
                inputs.append(value(f"past_key_values.{layer}.{side}.{part}", TensorProto.FLOAT, shape))
                outputs.append(value(f"present.{layer}.{side}.{part}", TensorProto.FLOAT, shape))
    inputs.append(value("use_cache_branch", TensorProto.BOOL, [1]))
    node = helper.make_node("If", ["use_cache_branch"], names, then_branch=renamed(with_cache, "with."),
                            else_branch=renamed(without, "without."))
    save(path, [node], inputs, outputs, weights)


def renamed(graph, prefix):
    """Gives the values of a branch names of their own."""
    made = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                names[at] = prefix + name if name in made else name
    for output in graph.output:
        output.name = prefix + output.name
    return graph


def main():
    folder = HERE / "tiny"
    folder.mkdir(exist_ok=True)
    encoder(folder / "encoder_model.onnx")
    decoder(folder / "decoder_model_merged.onnx", SEED)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")

    model = MoonshineOnnxModel(models_dir=str(folder), model_name="tiny")
    model.num_layers, model.num_key_value_heads, model.head_dim = LAYERS, HEADS, HEAD
    text = Tokenizer.from_file(str(folder / "tokenizer.json"))
    golden = []
    for count in (8_000, 16_000, 24_000, 32_000, 40_000, 64_000):
        # 6.5 tokens in a second, as the publisher limits them.
        (tokens,) = model.generate(samples(count)[None], max_len=int(count / 16_000 * 6.5))
        kept = [token for token in tokens[1:] if token != model.eos_token_id]
        golden.append({"samples": count, "tokens": kept, "text": text.decode(tokens)})
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


main()
