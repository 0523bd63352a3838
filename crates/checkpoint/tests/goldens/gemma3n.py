"""A tiny random Gemma 3n with its vision tower, and what the reference implementation makes of pictures.

Run with transformers 5.23, timm 1.0.31, torch, numpy and safetensors:

    python gemma3n.py OUT

OUT gets `config.json`, `preprocessor_config.json`, `model.safetensors`, `pixels.f32` (two pictures, `[2, 3, 64, 64]`),
`rows.f32` (the rows of both, each followed by the embedding of the token that ends a picture), `logits.f32` (a row for each
of the tokens of a chat with one picture) and `two.f32` (with two pictures). Weights are rounded to half precision first.

The tower has every kind of block of MobileNetV5 300M, with fewer blocks and channels: `model_args` of `vision_config` states
them, as timm takes them. timm fixes the width of the encoder's output, so the last module is replaced by a narrower one.
`shapes.txt` gets the names and shapes of the weights of MobileNetV5 300M itself.
"""

import json
import sys
from pathlib import Path

import numpy as np
import timm
import torch
import transformers
from timm.layers import RmsNorm2d
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.mobilenetv5 import MobileNetV5MultiScaleFusionAdapter

VOCAB, HIDDEN, SIDE, GRID, WIDTH = 88, 32, 64, 2, 64
START, END, ROW = 80, 81, 82
ROWS = GRID * GRID
PICTURE = [START, *[ROW] * ROWS, END]
ONE = [2, 7, 11, *PICTURE, 40, 41, 9, 33, 12, 70]
TWO = [2, 7, *PICTURE, 40, 5, *PICTURE, 41, 9, 33]
BLOCKS = [
    ["er_r1_k3_s2_e4_c16", "er_r1_k3_s1_e2_c16"],
    ["uir_r1_a3_k5_s2_e4_c16", "uir_r1_a5_k0_s1_e2_c16"],
    ["uir_r1_a5_k5_s2_e3_c32", "uir_r1_a0_k0_s1_e1_c32", "mqa_r1_k3_h3_v2_s1_d16_c32", "uir_r1_a0_k0_s1_e2_c32"],
    ["uir_r1_a5_k5_s2_e3_c32", "mqa_r1_k3_h2_s1_d32_c32", "uir_r1_a0_k0_s1_e2_c32"],
]


def tower_arguments():
    return {"block_args": decode_arch_def(BLOCKS), "stem_size": 8, "msfa_output_resolution": GRID}


def settings():
    rope = lambda theta: {"rope_type": "default", "rope_theta": theta}
    text = transformers.Gemma3nTextConfig(
        vocab_size=VOCAB, vocab_size_per_layer_input=END, hidden_size=HIDDEN, hidden_size_per_layer_input=8,
        intermediate_size=[64, 32, 64, 64], num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        sliding_window=12, max_position_embeddings=128, num_kv_shared_layers=2, altup_num_inputs=2, altup_active_idx=1,
        laurel_rank=32, activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0], final_logit_softcapping=12.0,
        layer_types=["sliding_attention", "full_attention"] * 2, bos_token_id=2, eos_token_id=1, pad_token_id=0,
        rope_parameters={"full_attention": rope(1e6), "sliding_attention": rope(1e4)})
    vision = transformers.models.gemma3n.Gemma3nVisionConfig(
        model_args=tower_arguments(), hidden_size=WIDTH, vocab_size=4, vocab_offset=END)
    audio = transformers.Gemma3nAudioConfig(
        vocab_size=VOCAB - END - 4, vocab_offset=END + 4, input_feat_size=16, hidden_size=16, conf_num_attention_heads=2,
        conf_num_hidden_layers=1, sscp_conv_channel_size=(4, 4))
    return transformers.Gemma3nConfig(
        text_config=text, vision_config=vision, audio_config=audio, boi_token_id=START, eoi_token_id=END, image_token_id=ROW,
        audio_token_id=86, eoa_token_id=85, boa_token_id=79, vision_soft_tokens_per_image=ROWS, attn_implementation="eager")


def randomised(model):
    rng = np.random.default_rng(17)
    for key, weight in model.named_parameters():
        noise = rng.standard_normal(tuple(weight.shape))
        if "norm" in key or ".bn" in key or key.endswith("correct_output_scale"):
            noise = 1 + 0.3 * noise
        elif key.endswith("gamma"):
            noise = 0.5 + 0.2 * noise
        elif "altup" in key and "coefs" in key or weight.dim() == 1:
            noise = 0.3 * noise
        elif weight.dim() >= 2 and "embed_tokens" not in key and not key.endswith("embedding.weight"):
            noise = noise / np.sqrt(np.prod(weight.shape[1:]))
        weight.data = torch.from_numpy(np.asarray(noise)).half().float()
    model.tie_weights()
    return model.float().eval(), rng


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    model = transformers.Gemma3nForConditionalGeneration(settings())
    tower = model.model.vision_tower.timm_model
    tower.msfa = MobileNetV5MultiScaleFusionAdapter(
        in_chs=tower.msfa_in_chs, out_chs=WIDTH, output_resolution=GRID, norm_layer=RmsNorm2d)
    model, rng = randomised(model)

    pixels = rng.uniform(0, 1, (2, 3, SIDE, SIDE)).astype(np.float16).astype(np.float32)
    pictures = torch.from_numpy(pixels)

    def logits(tokens, count):
        ids = torch.tensor([tokens])
        with torch.no_grad():
            return model(input_ids=ids, pixel_values=pictures[:count], attention_mask=torch.ones_like(ids),
                         use_cache=False).logits[0].numpy()

    with torch.no_grad():
        rows = model.model.get_image_features(pictures).pooler_output
        end = model.model.embed_vision(input_ids=torch.tensor([[END]])).expand(2, 1, HIDDEN)
        rows = torch.cat([rows, end], 1).numpy()
    assert rows.shape == (2, ROWS + 1, HIDDEN)
    pixels.tofile(out / "pixels.f32")
    rows.astype(np.float32).tofile(out / "rows.f32")
    logits(ONE, 1).astype(np.float32).tofile(out / "logits.f32")
    logits(TWO, 2).astype(np.float32).tofile(out / "two.f32")

    # timm has added functions to the arguments.
    model.config.vision_config.model_args = tower_arguments()
    saved = out / "saved"
    model.half().save_pretrained(saved)
    (out / "config.json").write_text((saved / "config.json").read_text())
    (saved / "model.safetensors").rename(out / "model.safetensors")
    for rest in saved.iterdir():
        rest.unlink()
    saved.rmdir()
    processor = {"image_processor_type": "SiglipImageProcessorFast", "do_normalize": False, "do_rescale": True,
                 "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "image_seq_length": ROWS,
                 "rescale_factor": 1 / 255, "resample": 2, "size": {"height": SIDE, "width": SIDE}}
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")

    with torch.device("meta"):
        published = timm.create_model("mobilenetv5_300m_enc")
    lines = [f"{name} {' '.join(map(str, weight.shape))}\n" for name, weight in published.named_parameters()]
    (out / "shapes.txt").write_text("".join(lines))


main(Path(sys.argv[1]))
