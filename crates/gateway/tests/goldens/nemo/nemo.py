"""Tiny random models in the layout of onnx-asr for NeMo models, and what onnx-asr makes of a generated sound with them.

    python nemo.py

Needs onnx, onnxruntime and onnx-asr; nothing of Narthex runs here. Writes the folders `ctc`, `rnnt` and `tdt` beside this
file, and `golden.json`: for each model, the tokens with their rows and the logarithms of their probabilities, and the text.
The tests in `crates/gateway/tests/gateway/nemo.rs` generate the same sound. The encoder of `tdt` keeps its weights in a
data file, as the published one does, and `tdt` also has graphs in int8.
"""

import json
import math
import pathlib

import numpy
import onnx
import onnx_asr
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

HERE = pathlib.Path(__file__).parent
TOKENS = ["<unk>", "▁the", "▁ca", "t", "s", "▁sat", "▁on", "▁a", "▁ma", "▁", "e", "n", "ing", ".", ",", "?", "▁2", "'s",
          "▁dog", "<blk>"]
VOCAB = len(TOKENS)
HIDDEN = 6
WIDTH = 4
LAYERS = 2
DURATIONS = 5


def samples(count):
    """Syllables of an overtone sound whose pitch glides, with noise, without which quiet bins would only hold rounding."""
    values = []
    state = 1
    phase = 0.0
    for at in range(count):
        seconds = at / 16000
        phase += 2 * math.pi * (150 + 60 * math.sin(2 * math.pi * 0.7 * seconds)) / 16000
        voice = sum(math.sin(phase * overtone) / overtone for overtone in range(1, 21))
        syllable = max(math.sin(2 * math.pi * 2.3 * seconds), 0.0)
        state = (state * 1664525 + 1013904223) % 2**32
        values.append(0.2 * voice * syllable + (state / 2**32 - 0.5) * 0.02)
    return numpy.array(values, dtype=numpy.float32)


class Weights:
    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        self.tensors = []

    def __call__(self, name, *shape, scale=1.0):
        return self.constant(name, self.random.standard_normal(shape).astype(numpy.float32) * numpy.float32(scale))

    def constant(self, name, values):
        self.tensors.append(numpy_helper.from_array(numpy.asarray(values), name))
        return name


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path, nodes, inputs, outputs, weights, data=None):
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, weights.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    if data is None:
        onnx.save(model, path)
    else:
        path.with_name(data).unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=64)


def encoder(bins, weights):
    """A convolution over eight frames."""
    weights("kernel", HIDDEN, bins, 8, scale=0.15)
    weights("bias", HIDDEN, scale=0.5)
    return [
        helper.make_node("Conv", ["audio_signal", "kernel", "bias"], ["rows"], kernel_shape=[8], strides=[8], pads=[0, 7]),
        helper.make_node("Sin", ["rows"], ["encoded"]),
    ]


def lengths(weights):
    """The number of the encoder's rows."""
    weights.constant("one", numpy.array([1], dtype=numpy.int64))
    weights.constant("eight", numpy.array([8], dtype=numpy.int64))
    return [
        helper.make_node("Sub", ["length", "one"], ["before"]),
        helper.make_node("Div", ["before", "eight"], ["whole"]),
        helper.make_node("Add", ["whole", "one"], ["encoded_lengths"]),
    ]


def features(bins):
    return [value("audio_signal", TensorProto.FLOAT, ["audio_signal_dynamic_axes_1", bins, "audio_signal_dynamic_axes_2"]),
            value("length", TensorProto.INT64, ["length_dynamic_axes_1"])]


def ctc(folder, seed):
    weights = Weights(seed)
    weights("head", HIDDEN, VOCAB, scale=2.0)
    nodes = encoder(80, weights) + [
        helper.make_node("Transpose", ["encoded"], ["by_row"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["by_row", "head"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["logprobs"], axis=-1),
    ]
    save(folder / "model.onnx", nodes, features(80), [value("logprobs", TensorProto.FLOAT, ["b", "t", VOCAB])], weights)


def transducer(folder, bins, durations, seed, data):
    weights = Weights(seed)
    nodes = encoder(bins, weights) + lengths(weights) + [helper.make_node("Identity", ["encoded"], ["outputs"])]
    outputs = [value("outputs", TensorProto.FLOAT, ["b", HIDDEN, "t"]), value("encoded_lengths", TensorProto.INT64, ["b"])]
    save(folder / "encoder-model.onnx", nodes, features(bins), outputs, weights, data)

    weights = Weights(seed + 1)
    weights("table", VOCAB, WIDTH, scale=2.0)
    weights("heads", WIDTH + HIDDEN, VOCAB + durations, scale=1.5)
    bias = weights.random.standard_normal(VOCAB + durations).astype(numpy.float32) / 2
    bias[VOCAB - 1] += 5.5 if durations == 0 else 1.0
    weights.constant("bias", bias)
    weights.constant("batch", numpy.array([1], dtype=numpy.int64))
    weights.constant("split", numpy.array([1] * LAYERS, dtype=numpy.int64))
    nodes = [
        helper.make_node("Gather", ["table", "targets"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["layer0"], perm=[1, 0, 2]),
        helper.make_node("Split", ["input_states_1", "split"], [f"h{layer}" for layer in range(LAYERS)], axis=0),
        helper.make_node("Split", ["input_states_2", "split"], [f"c{layer}" for layer in range(LAYERS)], axis=0),
    ]
    for layer in range(LAYERS):
        weights(f"w{layer}", 1, 4 * WIDTH, WIDTH, scale=1.5)
        weights(f"r{layer}", 1, 4 * WIDTH, WIDTH)
        nodes += [
            helper.make_node("LSTM", [f"layer{layer}", f"w{layer}", f"r{layer}", "", "", f"h{layer}", f"c{layer}"],
                             [f"all{layer}", f"hn{layer}", f"cn{layer}"], hidden_size=WIDTH),
            helper.make_node("Squeeze", [f"all{layer}", "batch"], [f"layer{layer + 1}"]),
        ]
    nodes += [
        helper.make_node("Concat", [f"hn{layer}" for layer in range(LAYERS)], ["output_states_1"], axis=0),
        helper.make_node("Concat", [f"cn{layer}" for layer in range(LAYERS)], ["output_states_2"], axis=0),
        helper.make_node("Transpose", [f"layer{LAYERS}"], ["predicted"], perm=[1, 0, 2]),
        helper.make_node("Transpose", ["encoder_outputs"], ["row"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["row", "predicted"], ["joined"], axis=2),
        helper.make_node("MatMul", ["joined", "heads"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Unsqueeze", ["sum", "batch"], ["outputs"]),
        helper.make_node("Identity", ["target_length"], ["prednet_lengths"]),
    ]
    state = [LAYERS, "states_dynamic_axes_1", WIDTH]
    inputs = [value("encoder_outputs", TensorProto.FLOAT, ["b", HIDDEN, "t"]), value("targets", TensorProto.INT32, ["b", "u"]),
              value("target_length", TensorProto.INT32, ["b"]), value("input_states_1", TensorProto.FLOAT, state),
              value("input_states_2", TensorProto.FLOAT, state)]
    outputs = [value("outputs", TensorProto.FLOAT, ["b", "t", "u", VOCAB + durations]),
               value("prednet_lengths", TensorProto.INT32, ["b"]), value("output_states_1", TensorProto.FLOAT, state),
               value("output_states_2", TensorProto.FLOAT, state)]
    save(folder / "decoder_joint-model.onnx", nodes, inputs, outputs, weights)


def settings(folder, kind, bins):
    folder.mkdir(exist_ok=True)
    stated = {"model_type": kind, "features_size": bins, "subsampling_factor": 8}
    (folder / "config.json").write_text(json.dumps(stated))
    lines = "".join(f"{token} {id}\n" for id, token in enumerate(TOKENS))
    (folder / "vocab.txt").write_text(lines, encoding="utf-8")


def recognized(folder, kind, quantization=None):
    model = onnx_asr.load_model(kind, folder, quantization=quantization,
                                preprocessor_config={"use_numpy_preprocessors": True}).asr
    sound = samples(96_000)[None]
    (result,) = model.recognize_batch(sound, numpy.array([sound.shape[1]]), need_logprobs=True)
    ids = {token.replace("\u2581", " "): id for id, token in enumerate(TOKENS)}
    rows = [round(timestamp / 0.08) for timestamp in result.timestamps]
    return {"folder": folder.name, "file": None if quantization is None else f"encoder-model.{quantization}.onnx",
            "tokens": [ids[token] for token in result.tokens], "rows": rows,
            "log_probabilities": [round(value, 5) for value in result.logprobs], "text": result.text}


def main():
    settings(HERE / "ctc", "nemo-conformer-ctc", 80)
    ctc(HERE / "ctc", 5)
    settings(HERE / "rnnt", "nemo-conformer-rnnt", 80)
    transducer(HERE / "rnnt", 80, 0, 29, None)
    settings(HERE / "tdt", "nemo-conformer-tdt", 128)
    transducer(HERE / "tdt", 128, DURATIONS, 11, "encoder-model.onnx.data")
    for stem in ("encoder-model", "decoder_joint-model"):
        quantize_dynamic(HERE / "tdt" / f"{stem}.onnx", HERE / "tdt" / f"{stem}.int8.onnx", weight_type=QuantType.QUInt8)
    golden = [recognized(HERE / "ctc", "nemo-conformer-ctc"), recognized(HERE / "rnnt", "nemo-conformer-rnnt"),
              recognized(HERE / "tdt", "nemo-conformer-tdt"), recognized(HERE / "tdt", "nemo-conformer-tdt", "int8")]
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
