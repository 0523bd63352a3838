"""Makes what lies here: one layer of the tiny Llama of `../families` in the formats of other quantisers, and its elements.

    pip install compressed-tensors==0.20.1 torch==2.15.0 safetensors numpy
    python make.py

compressed-tensors packs and reads its own formats. The layouts of AutoAWQ (`awq/utils/packing_utils.py`), GPTQ and AutoRound
(`pack_248_bits` of `auto_round_extension/torch/qlinear_torch_zp.py`) are written out here: their packages need a GPU or
much else. `golden.json` has of each weight the SHA-256 of its elements, row-major, little-endian, in single precision.
"""

import hashlib
import json
import pathlib

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
SOURCE, GROUP = HERE.parent / "families/llama", 32
LAYER = "model.layers.0."
CANONICAL = {
    "self_attn.q_proj": "attn.q_proj", "self_attn.k_proj": "attn.k_proj", "self_attn.v_proj": "attn.v_proj",
    "self_attn.o_proj": "attn.o_proj", "mlp.gate_proj": "mlp.gate_proj", "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}


def integers(weight, bits, group, symmetric, order=None):
    """Integers [out, in], scales and zero points [out, groups] of a weight. `order` has the group of each column."""
    top = 2**bits - 1
    groups = order if order is not None else np.arange(weight.shape[1]) // group
    count = groups.max() + 1
    scales, zeros = np.zeros((weight.shape[0], count), np.float32), np.zeros((weight.shape[0], count), np.int64)
    for index in range(count):
        part = weight[:, groups == index]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scales[:, index] = np.float16(np.maximum((high - low) / top, 1e-4))
        zeros[:, index] = (top + 1) // 2 if symmetric else np.clip(np.round(-low / scales[:, index]), 1, top)
    quants = np.clip(np.round(weight / scales[:, groups]) + zeros[:, groups], 0, top).astype(np.int64)
    elements = (quants - zeros[:, groups]).astype(np.float32) * scales[:, groups]
    return quants, scales, zeros, elements


def words(values, bits, order=range(8)):
    """Packs the last axis into words of 32 bits: value `order[i]` is the i-th from the lowest bits."""
    order = list(order)[: 32 // bits] if bits == 4 else list(range(32 // bits))
    values = values.reshape(*values.shape[:-1], -1, 32 // bits).astype(np.uint64)
    packed = sum(values[..., place] << np.uint64(bits * index) for index, place in enumerate(order))
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32).copy())


def half(values):
    return torch.from_numpy(np.ascontiguousarray(values)).half()


def awq(weight):
    quants, scales, zeros, elements = integers(weight, 4, GROUP, False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {"qweight": words(quants.T, 4, order), "qzeros": words(zeros.T, 4, order), "scales": half(scales.T)}, elements


def gptq(weight, bits, offset, symmetric, shuffled):
    cols = weight.shape[1]
    order = np.random.default_rng(cols).permutation(np.arange(cols) // GROUP) if shuffled else None
    quants, scales, zeros, elements = integers(weight, bits, GROUP, symmetric, order)
    tensors = {
        "qweight": words(quants, bits).T.contiguous(),
        "qzeros": words((zeros - offset).T, bits),
        "scales": half(scales.T),
    }
    if bits == 4:
        groups = order if shuffled else np.arange(cols) // GROUP
        tensors["g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return tensors, elements


def packed(weight, symmetric):
    quants, scales, zeros, elements = integers(weight, 4, GROUP, symmetric)
    signed = torch.from_numpy((quants - 8).astype(np.int8))
    tensors = {"weight_packed": pack_to_int32(signed, 4), "weight_scale": half(scales),
               "weight_shape": torch.tensor(weight.shape, dtype=torch.int64)}
    if not symmetric:
        tensors["weight_zero_point"] = pack_to_int32(torch.from_numpy((zeros - 8).astype(np.int8)), 4, packed_dim=0).contiguous()
    assert torch.equal(unpack_from_int32(tensors["weight_packed"], 4, torch.Size(weight.shape)), signed)
    return tensors, elements


def channels(weight):
    quants, scales, zeros, elements = integers(weight, 8, weight.shape[1], True)
    return {"weight": torch.from_numpy((quants - zeros).astype(np.int8)), "weight_scale": half(scales)}, elements


def floats(weight, tile):
    rows, cols = weight.shape
    blocks = [np.arange(size) // step for size, step in zip(weight.shape, tile)]
    scales = np.zeros((blocks[0].max() + 1, blocks[1].max() + 1), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            scales[i, j] = np.abs(weight[np.ix_(blocks[0] == i, blocks[1] == j)]).max() / 448
    spread = scales[np.ix_(blocks[0], blocks[1])]
    quants = torch.from_numpy(weight / spread).to(torch.float8_e4m3fn)
    return quants, torch.from_numpy(scales), quants.float().numpy() * spread


def channel_floats(weight):
    quants, scales, elements = floats(weight, (1, weight.shape[1]))
    return {"weight": quants, "weight_scale": scales, "input_scale": torch.ones(1)}, elements


def block_floats(weight):
    quants, scales, elements = floats(weight, (24, 40))
    return {"weight": quants, "weight_scale_inv": scales}, elements


def compressed(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


FORMS = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "gptq": (lambda w: gptq(w, 4, 1, False, False), {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False}),
    "gptq-act-order": (lambda w: gptq(w, 4, 0, True, True), {"quant_method": "gptq", "bits": 4, "group_size": GROUP,
                       "desc_act": True, "sym": True, "checkpoint_format": "gptq_v2"}),
    "auto-round-8": (lambda w: gptq(w, 8, 1, True, False), {"quant_method": "auto-round", "bits": 8, "group_size": GROUP,
                     "packing_format": "auto_round:auto_gptq", "sym": True}),
    "pack-quantized": (lambda w: packed(w, True), compressed("pack-quantized", num_bits=4, type="int", symmetric=True,
                       strategy="group", group_size=GROUP)),
    "pack-quantized-zeros": (lambda w: packed(w, False), compressed("pack-quantized", num_bits=4, type="int",
                             symmetric=False, strategy="group", group_size=GROUP)),
    "int-quantized": (channels, compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel")),
    "float-quantized": (channel_floats, compressed("float-quantized", num_bits=8, type="float", strategy="channel")),
    "fp8": (block_floats, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]}),
}

if __name__ == "__main__":
    source = load_file(SOURCE / "model.safetensors")
    config = json.loads((SOURCE / "config.json").read_text()) | {"num_hidden_layers": 1}
    for name, (pack, settings) in FORMS.items():
        tensors, digests = {}, {}
        for key, value in source.items():
            module = key.removeprefix(LAYER).removesuffix(".weight")
            if key.startswith("model.layers.1."):
                continue
            if not (key.startswith(LAYER) and module in CANONICAL):
                tensors[key] = value
                continue
            parts, elements = pack(value.float().numpy())
            tensors |= {f"{LAYER}{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
            data = np.ascontiguousarray(elements, np.dtype("<f4")).tobytes()
            digests[f"layers.0.{CANONICAL[module]}.weight"] = hashlib.sha256(data).hexdigest()
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}, indent=1) + "\n")
        (folder / "golden.json").write_text(json.dumps(digests, indent=1) + "\n")
