"""Makes what lies here: the tiny Llama of `../families` as AMD Quark itself exports it, and what a reader makes of its integers.

    pip install amd-quark==0.13 onnxruntime-genai==0.18.0 onnx-ir==1.1.0 torch==2.15.0 transformers==5.23.0
    python make.py

Quark rounds every linear weight, the head included, to 4 bits in groups of 32 columns with zero points
(`w_uint4_per_group_asym`). `golden.json` has of each the SHA-256 of its dequantised elements, row-major, little-endian, in
single precision. The integers are unpacked by `QuarkModel` of onnxruntime-genai's model builder.
"""

import hashlib
import json
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from onnxruntime_genai.models.loaders.quark import QuarkModel
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.quantization.config.config import QConfig, QLayerConfig, Uint4PerGroupSpec
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
SOURCE, OUT, GROUP = HERE.parent / "families/llama", HERE, 32


def export():
    model = AutoModelForCausalLM.from_pretrained(SOURCE, dtype=torch.float16).eval()
    weight = Uint4PerGroupSpec(ch_axis=-1, group_size=GROUP, is_dynamic=False, symmetric=False).to_quantization_spec()
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=weight), exclude=[]))
    model = quantizer.freeze(quantizer.quantize_model(model))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        export_safetensors(model, folder, custom_mode="quark", weight_format="real_quantized", pack_method="reorder")
        for name in ["config.json", "model.safetensors"]:
            shutil.copy(pathlib.Path(folder) / name, OUT)


def dequantised(module):
    """The elements of a weight in the form of MatMulNBits, which is what the builder makes of it."""
    rows = module.out_features
    nibbles = lambda packed: np.stack([packed & 15, packed >> 4], axis=-1)
    quants = nibbles(module.qweight.numpy().astype(np.int32)).reshape(rows, -1, GROUP)
    groups = quants.shape[1]
    zeros = nibbles(module.qzeros.numpy().astype(np.int32).reshape(rows, -1)).reshape(rows, -1)[:, :groups]
    scales = module.scales.float().numpy().reshape(rows, groups)
    values = (quants - zeros[..., None]).astype(np.float32) * scales[..., None]
    return values.reshape(rows, -1)


def golden():
    config = json.loads((OUT / "config.json").read_text())
    attrs = dict(config=config["quantization_config"], use_g_idx=False)
    head = config["head_dim"]
    model = QuarkModel("quark", input_path=OUT, quant_attrs=attrs, q_size=config["num_attention_heads"] * head,
                       kv_size=config["num_key_value_heads"] * head, intermediate_size=config["intermediate_size"],
                       num_layers=config["num_hidden_layers"])
    modules = {"head": model.lm_head}
    for layer in model.layers:
        parts = [("attn", layer.self_attn, "qkvo"), ("mlp", layer.mlp, ["gate", "up", "down"])]
        for room, module, names in parts:
            for name in names:
                modules[f"layers.{layer.layer_id}.{room}.{name}_proj"] = getattr(module, f"{name}_proj")
    digest = lambda module: hashlib.sha256(dequantised(module).astype("<f4").tobytes()).hexdigest()
    digests = {f"{name}.weight": digest(module) for name, module in modules.items()}
    (OUT / "golden.json").write_text(json.dumps(digests, indent=1) + "\n")


if __name__ == "__main__":
    export()
    golden()
