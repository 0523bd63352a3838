"""Asks Qualcomm's compiler which operators a Hexagon NPU takes, one operator a model, and prints a table.

    pip install numpy onnx onnxruntime==1.31.1 onnxruntime-qnn==2.7.0
    python htp_operators.py [SOC] > htp_operators.tsv     # SOC as QNN numbers chips; 60 is Snapdragon X Elite

It runs on any x86-64 Linux machine; nothing is executed. The table beside this file was recorded for soc 60 (v73), and
soc 57 and 88 (v75, v81) gave the same answers. Axes are the most of any input or output. Record it again when the pinned
version of the compiler changes; `mod.rs` reads it as it is.
"""
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn as qnn
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

SOC = sys.argv[1] if len(sys.argv) > 1 else "60"
ARCH = {"60": "73", "88": "81", "57": "75", "69": "79", "87": "81", "30": "68"}[SOC]
NUMPY = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "i8": np.int8, "bool": np.bool_, "f64": np.float64}
ONNX = {"f32": T.FLOAT, "f16": T.FLOAT16, "i32": T.INT32, "i64": T.INT64, "u8": T.UINT8, "i8": T.INT8, "bool": T.BOOL, "f64": T.DOUBLE}
OPSET = 23
MS = "com.microsoft"


class Model:
    """One operator under test, with its inputs."""

    def __init__(self, dtype):
        self.dtype, self.inputs, self.constants, self.nodes = dtype, [], [], []

    def input(self, shape, dtype=None):
        name = f"x{len(self.inputs)}"
        self.inputs.append(h.make_tensor_value_info(name, ONNX[dtype or self.dtype], shape))
        return name

    def const(self, value, dtype=None):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value).astype(NUMPY[dtype or self.dtype]), name))
        return name

    def node(self, op, inputs, outputs=1, domain="", **attributes):
        names = [f"y{i}" for i in range(outputs)]
        self.nodes.append(h.make_node(op, inputs, names, name="probe", domain=domain, **attributes))
        return names

    def bytes(self):
        opsets = [h.make_opsetid("", OPSET), h.make_opsetid(MS, 1)]
        outputs = [onnx.ValueInfoProto(name=n) for node in self.nodes for n in node.output if n]
        graph = h.make_graph(self.nodes, "probe", self.inputs, outputs, self.constants)
        model = h.make_model(graph, opset_imports=opsets, ir_version=10)
        try:
            model = onnx.shape_inference.infer_shapes(model)
        except Exception:
            pass
        return model.SerializeToString()


def shape_of(rank):
    return {0: [], 1: [8], 2: [4, 8], 3: [2, 4, 8], 4: [1, 2, 4, 8], 5: [1, 2, 2, 4, 8], 6: [1, 1, 2, 2, 4, 8]}[rank]


def placed(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices(DEVICE, {
        "backend_path": qnn.get_qnn_htp_path(), "soc_model": SOC, "htp_arch": ARCH,
        "enable_htp_fp16_precision": "1", "offload_graph_io_quantization": "0"})
    session = ort.InferenceSession(model, options)
    parts = session.get_provider_graph_assignment_info()
    nodes = [(node.name, part.ep_name) for part in parts for node in part.get_nodes()]
    # Some operators are given another layout or written as several before they are placed, and lose their name.
    mine = [ep for name, ep in nodes if name == "probe"] or [ep for _, ep in nodes]
    return "npu" if mine and all(ep == "QNNExecutionProvider" for ep in mine) else "cpu"


def asked(op, case, dtype, rank, build):
    """Whether the NPU takes the operator: npu, cpu, fails, or invalid where ONNX has no such operator for the type."""
    model = Model(dtype)
    try:
        build(model, shape_of(rank))
        return placed(model.bytes())
    except Exception as error:
        text = str(error)
        print(f"# {op} {case} {dtype} rank {rank}: {text[:200]!r}", file=sys.stderr)
        invalid = "NOT_IMPLEMENTED", "INVALID_GRAPH", "Type Error", "INVALID_ARGUMENT", "ShapeInference", "TypeError"
        return "invalid" if any(word in text for word in invalid) else "fails"


UNARY = "Abs Acos Asin Atan Ceil Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu Round Selu Sigmoid Sign Sin Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Sinh Cosh Celu Swish Hardmax BitwiseNot LpNormalization Shape Size NonZero".split()
BINARY = "Add Sub Mul Div Pow PRelu Min Max Mean Sum Mod And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual MatMul BitShift BitwiseAnd".split()
REDUCE = "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSumExp ReduceSumSquare ReduceLogSum".split()


def cases():
    """Yields (operator, case, build, element types, ranks)."""
    every, ranks = ["f32", "f16", "i32", "i64", "bool", "u8"], [1, 2, 3, 4, 5, 6]
    for op in UNARY:
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(s)]), every, ranks
    for op in BINARY:
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(s), m.input(s[:-2] + s[:-3:-1] if op == "MatMul" else s)]), every, ranks
        if op not in ("MatMul",):
            yield op, "const", lambda m, s, op=op: m.node(op, [m.input(s), m.const(np.ones(s[-1:]))]), ["f32", "f16", "i32", "i64"], [4]
    yield "MatMul", "const", lambda m, s: m.node("MatMul", [m.input(s), m.const(np.ones([8, 16]))]), ["f32", "f16", "i32", "u8"], [1, 2, 3, 4, 5]
    for op in REDUCE:
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(s), m.const([-1], "i64")], keepdims=1), ["f32", "f16", "i32", "i64"], ranks
    for op in ("ArgMax", "ArgMin"):
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(s)], axis=-1), ["f32", "f16", "i32"], [2, 4, 5]
    for to in ("f32", "f16", "i32", "i64", "bool", "u8", "f64"):
        yield "Cast", f"to {to}", lambda m, s, to=to: m.node("Cast", [m.input(s)], to=ONNX[to]), every + ["f64"], [4]
    yield "Clip", "", lambda m, s: m.node("Clip", [m.input(s), m.const(0), m.const(1)]), ["f32", "f16", "i32", "i64"], ranks
    yield "Concat", "", lambda m, s: m.node("Concat", [m.input(s), m.input(s)], axis=-1), every, ranks
    yield "Split", "", lambda m, s: m.node("Split", [m.input(s)], 2, axis=-1, num_outputs=2), every, ranks
    yield "Slice", "", lambda m, s: m.node("Slice", [m.input(s), m.const([0], "i64"), m.const([4], "i64"), m.const([-1], "i64")]), every, ranks
    yield "Slice", "starts at run time", lambda m, s: m.node("Slice", [m.input(s), m.input([1], "i64"), m.const([4], "i64"), m.const([-1], "i64")]), ["f32"], [4]
    yield "Transpose", "", lambda m, s: m.node("Transpose", [m.input(s)], perm=list(range(len(s)))[::-1]), every, ranks
    yield "Reshape", "", lambda m, s: m.node("Reshape", [m.input(s), m.const([-1, 2], "i64")]), every, ranks
    yield "Reshape", "shape at run time", lambda m, s: m.node("Reshape", [m.input(s), m.input([2], "i64")]), ["f32"], [4]
    yield "Flatten", "", lambda m, s: m.node("Flatten", [m.input(s)]), every, ranks
    yield "Squeeze", "", lambda m, s: m.node("Squeeze", [m.input([1] + s), m.const([0], "i64")]), every, [1, 2, 3, 4, 5]
    yield "Unsqueeze", "", lambda m, s: m.node("Unsqueeze", [m.input(s), m.const([0], "i64")]), every, [1, 2, 3, 4, 5]
    yield "Expand", "", lambda m, s: m.node("Expand", [m.input([1] + s), m.const([2] + s, "i64")]), every, [1, 2, 3, 4, 5]
    yield "Tile", "", lambda m, s: m.node("Tile", [m.input(s), m.const([1] * (len(s) - 1) + [2], "i64")]), every, ranks
    yield "Pad", "", lambda m, s: m.node("Pad", [m.input(s), m.const([0] * (2 * len(s) - 1) + [2], "i64")]), ["f32", "f16", "i32"], ranks
    yield "Where", "", lambda m, s: m.node("Where", [m.input(s, "bool"), m.input(s), m.input(s)]), every, ranks
    for index in ("i32", "i64"):
        yield "Gather", f"{index} indices", lambda m, s, index=index: m.node("Gather", [m.input(s), m.input([3], index)], axis=0), every, ranks
        yield "GatherElements", f"{index} indices", lambda m, s, index=index: m.node("GatherElements", [m.input(s), m.input(s, index)], axis=-1), every, [2, 3, 4, 5]
        yield "GatherND", f"{index} indices", lambda m, s, index=index: m.node("GatherND", [m.input(s), m.input([3, 1], index)]), every, [2, 3, 4, 5]
        yield "Gather", f"wide {index} indices", lambda m, s, index=index: m.node("Gather", [m.input([8, 4]), m.input(s, index)], axis=0), every, [2, 3, 4]
        yield "ScatterElements", f"{index} indices", lambda m, s, index=index: m.node("ScatterElements", [m.input(s), m.input(s, index), m.input(s)], axis=-1), every, [2, 3, 4, 5]
        yield "ScatterND", f"{index} indices", lambda m, s, index=index: m.node("ScatterND", [m.input(s), m.input([1, 1], index), m.input([1] + s[1:])]), every, [2, 3, 4, 5]
    yield "GatherND", "wide i64 indices", lambda m, s: m.node("GatherND", [m.input([8, 4]), m.input(s[:-1] + [2], "i64")]), every, [3, 4, 5]
    yield "Gather", "scalar index", lambda m, s: m.node("Gather", [m.input(s), m.const(1, "i64")], axis=-1), ["f32", "f16", "i64"], [2, 4]
    yield "CumSum", "", lambda m, s: m.node("CumSum", [m.input(s), m.const([1], "i64")]), ["f32", "f16", "i32", "i64"], [2, 3, 4, 5]
    yield "TopK", "", lambda m, s: m.node("TopK", [m.input(s), m.const([2], "i64")], 2), ["f32", "f16", "i32"], [1, 2, 3, 4, 5]
    yield "TopK", "k at run time", lambda m, s: m.node("TopK", [m.input(s), m.input([1], "i64")], 2), ["f32"], [4]
    yield "OneHot", "", lambda m, s: m.node("OneHot", [m.input(s, "i32"), m.const([8], "i64"), m.const([0, 1])]), ["f32", "f16"], [2, 4]
    yield "Range", "const", lambda m, s: m.node("Range", [m.const(0), m.const(8), m.const(1)]), ["f32", "i32", "i64"], [1]
    yield "ConstantOfShape", "const", lambda m, s: m.node("ConstantOfShape", [m.const(s, "i64")]), ["f32"], [4]
    yield "Trilu", "", lambda m, s: m.node("Trilu", [m.input(s)], upper=1), ["f32", "f16", "i64", "bool"], [2, 4]
    yield "EyeLike", "", lambda m, s: m.node("EyeLike", [m.input(s)]), ["f32"], [2]
    yield "Einsum", "", lambda m, s: m.node("Einsum", [m.input([1, 2, 4, 8]), m.input([1, 2, 8, 4])], equation="bhqd,bhdk->bhqk"), ["f32", "f16"], [4]
    yield "Gemm", "", lambda m, s: m.node("Gemm", [m.input([4, 8]), m.const(np.ones([8, 16])), m.const(np.ones([16]))]), ["f32", "f16"], [2]
    yield "Gemm", "transB", lambda m, s: m.node("Gemm", [m.input([4, 8]), m.const(np.ones([16, 8])), m.const(np.ones([16]))], transB=1), ["f32", "f16"], [2]
    yield "Gemm", "alpha 0.5", lambda m, s: m.node("Gemm", [m.input([4, 8]), m.const(np.ones([8, 16])), m.const(np.ones([16]))], alpha=0.5), ["f32", "f16"], [2]
    image, kernel = [1, 4, 8, 8], np.ones([8, 4, 3, 3])
    yield "Conv", "", lambda m, s: m.node("Conv", [m.input(image), m.const(kernel), m.const(np.ones([8]))]), ["f32", "f16"], [4]
    yield "Conv", "1-D", lambda m, s: m.node("Conv", [m.input([1, 4, 8]), m.const(np.ones([8, 4, 3]))]), ["f32", "f16"], [3]
    yield "Conv", "3-D", lambda m, s: m.node("Conv", [m.input([1, 4, 8, 8, 8]), m.const(np.ones([8, 4, 3, 3, 3]))]), ["f32", "f16"], [5]
    yield "Conv", "depthwise", lambda m, s: m.node("Conv", [m.input(image), m.const(np.ones([4, 1, 3, 3]))], group=4), ["f32", "f16"], [4]
    yield "ConvTranspose", "", lambda m, s: m.node("ConvTranspose", [m.input(image), m.const(np.ones([4, 8, 3, 3]))]), ["f32", "f16"], [4]
    for op in ("MaxPool", "AveragePool"):
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(image)], kernel_shape=[2, 2], strides=[2, 2]), ["f32", "f16"], [4]
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(image)]), ["f32", "f16"], [4]
    yield "LpPool", "", lambda m, s: m.node("LpPool", [m.input(image)], kernel_shape=[2, 2]), ["f32", "f16"], [4]
    yield "Resize", "linear", lambda m, s: m.node("Resize", [m.input(image), "", m.const([1, 1, 2, 2], "f32")], mode="linear"), ["f32", "f16"], [4]
    yield "Resize", "nearest", lambda m, s: m.node("Resize", [m.input(image), "", m.const([1, 1, 2, 2], "f32")], mode="nearest"), ["f32", "f16"], [4]
    yield "Resize", "cubic", lambda m, s: m.node("Resize", [m.input(image), "", m.const([1, 1, 2, 2], "f32")], mode="cubic"), ["f32", "f16"], [4]
    for op in ("DepthToSpace", "SpaceToDepth"):
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(image)], blocksize=2), ["f32", "f16"], [4]
    yield "BatchNormalization", "", lambda m, s: m.node("BatchNormalization", [m.input(image)] + [m.const(np.ones([4])) for _ in range(4)]), ["f32", "f16"], [4]
    yield "InstanceNormalization", "", lambda m, s: m.node("InstanceNormalization", [m.input(image)] + [m.const(np.ones([4])) for _ in range(2)]), ["f32", "f16"], [4]
    yield "GroupNormalization", "", lambda m, s: m.node("GroupNormalization", [m.input(image)] + [m.const(np.ones([4])) for _ in range(2)], num_groups=2), ["f32", "f16"], [4]
    yield "LRN", "", lambda m, s: m.node("LRN", [m.input(image)], size=3), ["f32", "f16"], [4]
    yield "GridSample", "", lambda m, s: m.node("GridSample", [m.input(image), m.input([1, 8, 8, 2])]), ["f32", "f16"], [4]
    yield "LayerNormalization", "", lambda m, s: m.node("LayerNormalization", [m.input(s), m.const(np.ones([8])), m.const(np.ones([8]))]), ["f32", "f16"], ranks
    yield "LayerNormalization", "axis 1", lambda m, s: m.node("LayerNormalization", [m.input([2, 4, 8]), m.const(np.ones([4, 8])), m.const(np.ones([4, 8]))], axis=1), ["f32"], [3]
    yield "LayerNormalization", "no bias", lambda m, s: m.node("LayerNormalization", [m.input(s), m.const(np.ones([8]))]), ["f32", "f16"], [3]
    yield "SimplifiedLayerNormalization", "", lambda m, s: m.node("SimplifiedLayerNormalization", [m.input(s), m.const(np.ones([8]))], axis=-1, epsilon=1e-5), ["f32", "f16"], ranks
    yield "SimplifiedLayerNormalization", "f32 scale", lambda m, s: m.node("SimplifiedLayerNormalization", [m.input(s), m.const(np.ones([8]), "f32")], axis=-1, epsilon=1e-5), ["f16"], [3]
    yield "RMSNormalization", "", lambda m, s: m.node("RMSNormalization", [m.input(s), m.const(np.ones([8]))], axis=-1), ["f32", "f16"], ranks
    yield "LSTM", "", lambda m, s: m.node("LSTM", [m.input([4, 1, 8]), m.const(np.ones([1, 32, 8])), m.const(np.ones([1, 32, 8]))], 3, hidden_size=8), ["f32", "f16"], [3]
    yield "GRU", "", lambda m, s: m.node("GRU", [m.input([4, 1, 8]), m.const(np.ones([1, 24, 8])), m.const(np.ones([1, 24, 8]))], 2, hidden_size=8), ["f32", "f16"], [3]
    yield "RNN", "", lambda m, s: m.node("RNN", [m.input([4, 1, 8]), m.const(np.ones([1, 8, 8])), m.const(np.ones([1, 8, 8]))], 2, hidden_size=8), ["f32", "f16"], [3]
    yield "Dropout", "", lambda m, s: m.node("Dropout", [m.input(s)]), ["f32", "f16"], [4]
    yield "MeanVarianceNormalization", "", lambda m, s: m.node("MeanVarianceNormalization", [m.input(image)]), ["f32", "f16"], [4]
    yield "Unique", "", lambda m, s: m.node("Unique", [m.input([8])]), ["f32"], [1]
    yield "Compress", "", lambda m, s: m.node("Compress", [m.input(s), m.input([8], "bool")], axis=-1), ["f32"], [4]
    yield "ReverseSequence", "", lambda m, s: m.node("ReverseSequence", [m.input([4, 1, 8]), m.input([1], "i64")]), ["f32"], [3]
    yield "Det", "", lambda m, s: m.node("Det", [m.input([4, 4])]), ["f32"], [2]
    yield "DFT", "", lambda m, s: m.node("DFT", [m.input([1, 8, 1])]), ["f32"], [3]
    yield "STFT", "", lambda m, s: m.node("STFT", [m.input([1, 64, 1]), m.const(8, "i64"), m.const(np.ones([16]))]), ["f32"], [3]
    yield "NonMaxSuppression", "", lambda m, s: m.node("NonMaxSuppression", [m.input([1, 8, 4]), m.input([1, 1, 8]), m.const([4], "i64"), m.const([0.5], "f32"), m.const([0.1], "f32")]), ["f32"], [3]
    yield "RoiAlign", "", lambda m, s: m.node("RoiAlign", [m.input(image), m.input([2, 4]), m.input([2], "i64")], output_height=2, output_width=2), ["f32"], [4]
    for op in ("RandomNormalLike", "RandomUniformLike", "Bernoulli"):
        yield op, "", lambda m, s, op=op: m.node(op, [m.input(s)]), ["f32"], [4]
    yield "QuantizeLinear", "", lambda m, s: m.node("QuantizeLinear", [m.input(s), m.const(0.1, "f32"), m.const(0, "u8")]), ["f32"], [4]
    yield "DequantizeLinear", "", lambda m, s: m.node("DequantizeLinear", [m.input(s, "u8"), m.const(0.1, "f32"), m.const(0, "u8")]), ["u8"], [4]
    yield "DynamicQuantizeLinear", "", lambda m, s: m.node("DynamicQuantizeLinear", [m.input(s)], 3), ["f32"], [3]
    yield "MatMulInteger", "", lambda m, s: m.node("MatMulInteger", [m.input([4, 8]), m.const(np.ones([8, 16]))]), ["u8"], [2]
    yield "ConvInteger", "", lambda m, s: m.node("ConvInteger", [m.input(image), m.const(kernel)]), ["u8"], [4]
    yield "QLinearMatMul", "", lambda m, s: m.node("QLinearMatMul", [m.input([4, 8]), m.const(0.1, "f32"), m.const(0, "u8"), m.const(np.ones([8, 16]), "u8"), m.const(0.1, "f32"), m.const(0, "u8"), m.const(0.1, "f32"), m.const(0, "u8")]), ["u8"], [2]
    # Attention and positions.
    q, kv = [1, 4, 8, 16], [1, 4, 8, 16]
    yield "Attention", "", lambda m, s: m.node("Attention", [m.input(q), m.input(kv), m.input(kv)]), ["f32", "f16"], [4]
    yield "Attention", "causal", lambda m, s: m.node("Attention", [m.input(q), m.input(kv), m.input(kv)], is_causal=1), ["f32", "f16"], [4]
    yield "Attention", "float mask", lambda m, s: m.node("Attention", [m.input(q), m.input(kv), m.input(kv), m.input([1, 1, 8, 8])]), ["f32", "f16"], [4]
    yield "Attention", "bool mask", lambda m, s: m.node("Attention", [m.input(q), m.input(kv), m.input(kv), m.input([1, 1, 8, 8], "bool")]), ["f32", "f16"], [4]
    yield "RotaryEmbedding", "", lambda m, s: m.node("RotaryEmbedding", [m.input(q), m.input([1, 8, 8]), m.input([1, 8, 8])]), ["f32", "f16"], [4]
    yield "RotaryEmbedding", "positions", lambda m, s: m.node("RotaryEmbedding", [m.input(q), m.const(np.ones([32, 8])), m.const(np.ones([32, 8])), m.input([1, 8], "i64")]), ["f32", "f16"], [4]
    def nbits(rank, bits, block=32, zeros=False, k=64, bias=False, scales=None):
        def build(m, s):
            x = m.input([4, k] if rank == 2 else [1, 4, k] if rank == 3 else [1, 1, 4, k])
            blocks = -(-k // block)
            inputs = [x, m.const(np.ones([16, blocks, block * bits // 8]), "u8"), m.const(np.ones([16, blocks]), scales or m.dtype)]
            inputs += [m.const(np.ones([16, -(-blocks * bits // 8)]), "u8")] if zeros else []
            inputs += [""] * (5 - len(inputs)) + [m.const(np.ones([16]))] if bias else []
            m.node("MatMulNBits", inputs, domain=MS, bits=bits, block_size=block, K=k, N=16)
        return build
    for rank in (2, 3, 4):
        yield "com.microsoft.MatMulNBits", "4 bits", nbits(rank, 4), ["f32", "f16"], [rank]
    yield "com.microsoft.MatMulNBits", "8 bits", nbits(3, 8), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "2 bits", nbits(3, 2), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "4 bits, zero points", nbits(3, 4, zeros=True), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "4 bits, bias", nbits(3, 4, bias=True), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "4 bits, K not a multiple", nbits(3, 4, k=80), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "4 bits, block 128", nbits(3, 4, 128, k=128), ["f32", "f16"], [3]
    yield "com.microsoft.MatMulNBits", "4 bits, block 16", nbits(3, 4, 16), ["f32", "f16"], [3]
    ms = lambda op, build: (f"com.microsoft.{op}", "", build)
    d = [1, 4, 16]
    yield *ms("SkipSimplifiedLayerNormalization", lambda m, s: m.node("SkipSimplifiedLayerNormalization", [m.input(d), m.input(d), m.const(np.ones([16]))], domain=MS)), ["f32", "f16"], [3]
    yield *ms("SkipLayerNormalization", lambda m, s: m.node("SkipLayerNormalization", [m.input(d), m.input(d), m.const(np.ones([16])), m.const(np.ones([16]))], domain=MS)), ["f32", "f16"], [3]
    yield *ms("RotaryEmbedding", lambda m, s: m.node("RotaryEmbedding", [m.input(q), m.input([1, 8], "i64"), m.const(np.ones([32, 8])), m.const(np.ones([32, 8]))], domain=MS)), ["f32", "f16"], [4]
    yield *ms("MultiHeadAttention", lambda m, s: m.node("MultiHeadAttention", [m.input(d), m.input(d), m.input(d)], domain=MS, num_heads=4)), ["f32", "f16"], [3]
    yield *ms("Attention", lambda m, s: m.node("Attention", [m.input(d), m.const(np.ones([16, 48])), m.const(np.ones([48]))], domain=MS, num_heads=4)), ["f32", "f16"], [3]
    yield *ms("GroupQueryAttention", lambda m, s: m.node("GroupQueryAttention", [m.input([1, 1, 64]), m.input([1, 1, 32]), m.input([1, 1, 32]), m.input([1, 2, 8, 16]), m.input([1, 2, 8, 16]), m.input([1], "i32"), m.const(8, "i32")], 3, domain=MS, num_heads=4, kv_num_heads=2)), ["f32", "f16"], [3]
    yield *ms("BiasGelu", lambda m, s: m.node("BiasGelu", [m.input(d), m.const(np.ones([16]))], domain=MS)), ["f32", "f16"], [3]
    yield *ms("FastGelu", lambda m, s: m.node("FastGelu", [m.input(d)], domain=MS)), ["f32", "f16"], [3]
    yield *ms("Gelu", lambda m, s: m.node("Gelu", [m.input(d)], domain=MS)), ["f32", "f16"], [3]
    yield *ms("QuickGelu", lambda m, s: m.node("QuickGelu", [m.input(d)], domain=MS)), ["f32", "f16"], [3]
    yield *ms("FusedMatMul", lambda m, s: m.node("FusedMatMul", [m.input([1, 4, 8]), m.input([1, 8, 4])], domain=MS)), ["f32", "f16"], [3]
    yield *ms("EmbedLayerNormalization", lambda m, s: m.node("EmbedLayerNormalization", [m.input([1, 4], "i32"), "", m.const(np.ones([32, 16])), m.const(np.ones([32, 16])), "", m.const(np.ones([16])), m.const(np.ones([16]))], 2, domain=MS)), ["f32"], [2]
    yield *ms("GatherBlockQuantized", lambda m, s: m.node("GatherBlockQuantized", [m.const(np.ones([32, 32]), "u8"), m.input([4], "i64"), m.const(np.ones([32, 2]), "f32")], domain=MS, bits=8, block_size=16, quantize_axis=1)), ["f32"], [2]
    yield *ms("QuantizeLinear", lambda m, s: m.node("QuantizeLinear", [m.input(s), m.const(0.1, "f32"), m.const(0, "u8")], domain=MS)), ["f32"], [4]


def rows():
    for op, case, build, dtypes, ranks in cases():
        for dtype in dtypes:
            for rank in ranks:
                yield op, case, dtype, rank, build


def widest(op, case, dtype, rank, build):
    """The most axes among the inputs and outputs of the operator under test, by which the table is asked."""
    model = Model(dtype)
    try:
        build(model, shape_of(rank))
        graph = onnx.load_from_string(model.bytes()).graph
        shapes = [value.type.tensor_type for value in [*graph.input, *graph.output]]
        return max([len(tensor.shape.dim) for tensor in shapes if tensor.HasField("shape")], default=rank)
    except Exception:
        return rank


def child(start):
    global DEVICE
    ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
    DEVICE = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"]
    for number, row in enumerate(rows()):
        if number >= start:
            print("answer", asked(*row), flush=True)


def main():
    """Some rows end the compiler's process, so each run goes on after the row at which the last one ended."""
    every, answers = [(*row[:3], widest(*row)) for row in rows()], []
    while len(answers) < len(every):
        run = subprocess.run([sys.executable, __file__, SOC, str(len(answers))], stdout=subprocess.PIPE, text=True)
        answers += [line.split()[1] for line in run.stdout.splitlines() if line.startswith("answer ")]
        if len(answers) < len(every):
            answers.append("fails")
    table = {}
    for (op, case, dtype, rank), answer in zip(every, answers):
        if answer != "invalid":
            ranks = table.setdefault((op, case, dtype), {}).setdefault(answer, [])
            ranks += [str(rank)] if str(rank) not in ranks else []
    print(f"# onnxruntime {ort.__version__}, onnxruntime-qnn 2.7.0, soc {SOC}, HTP v{ARCH}")
    print("# operator\tcase\ttype\taxes taken\taxes refused\taxes that fail the compile")
    for key, ranks in table.items():
        print("\t".join([*key, *(",".join(ranks.get(answer, [])) for answer in ("npu", "cpu", "fails"))]))


if __name__ == "__main__":
    child(int(sys.argv[2])) if len(sys.argv) > 2 else main()
