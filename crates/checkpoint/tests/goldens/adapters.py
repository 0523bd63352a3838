"""LoRA adapters for tiny checkpoints of `families`, and the weights into which PEFT merges them.

Run with peft 0.21, transformers 5.23, torch, numpy, safetensors and gguf:

    python adapters.py FAMILIES OUT

OUT gets a folder for each family with `adapter_config.json` and `adapter_model.safetensors` as PEFT saves them, and with
`merged.safetensors`, the weights of the merged model in `f32`. The folder of llama has `adapter.gguf` too: the same adapter for
`model.gguf`, with the names and the order of rows of llama.cpp's `convert_lora_to_gguf.py`.
"""

import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file, save_file

FAMILIES = {
    "llama": dict(r=3, lora_alpha=5, target_modules="all-linear"),
    # Weights are stored as [in, out].
    "gpt2": dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, use_rslora=True),
    # Queries, keys and values are one weight, and so are gate and up projection.
    "phi3": dict(
        r=2,
        lora_alpha=4,
        target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        rank_pattern={"qkv_proj": 4, "layers.1.mlp.down_proj": 1},
        alpha_pattern={"o_proj": 7},
    ),
}


def gguf_adapter(folder, config, base):
    """Writes the adapter in llama.cpp's form."""
    writer = gguf.GGUFWriter(str(folder / "adapter.gguf"), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    tensors = load_file(folder / "adapter_model.safetensors")
    for key, values in tensors.items():
        module, kind = key.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        name = names.get_name(module + ".weight", try_suffixes=(".weight",))
        heads = {"q_proj": base.num_attention_heads, "k_proj": base.num_key_value_heads}.get(module.rsplit(".", 1)[1])
        if kind == "lora_B" and heads:
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(name + "." + kind.lower(), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(families, out):
    for family, settings in FAMILIES.items():
        base = transformers.AutoModelForCausalLM.from_pretrained(families / family, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
        rng = np.random.default_rng(zlib.crc32(family.encode()))
        for key, weight in model.named_parameters():
            if "lora_" in key:
                weight.data = torch.from_numpy(rng.standard_normal(tuple(weight.shape)) / 8).half().float()
        folder = out / family
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        if family == "llama":
            gguf_adapter(folder, settings, base.config)
        merged = model.merge_and_unload()
        weights = {key: value.detach().contiguous().numpy() for key, value in merged.state_dict().items()}
        if merged.config.tie_word_embeddings:
            weights.pop("lm_head.weight")
        save_file(weights, folder / "merged.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
