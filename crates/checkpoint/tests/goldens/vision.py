"""A tiny random Gemma 3 with a vision tower, and what the reference implementation makes of a picture.

Run with transformers 5.23, torch, numpy and safetensors:

    python vision.py OUT

OUT gets `config.json`, `preprocessor_config.json`, `model.safetensors`, `pixels.f32` (two pictures, `[2, 3, 32, 32]`),
`rows.f32` (the rows of both), `logits.f32` (a row for each of the tokens of a chat with one picture) and `two.f32` (with two
pictures). Weights are rounded to half precision first.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

VOCAB, HIDDEN, SIDE = 84, 32, 32
START, ROW, END, ROWS = 80, 81, 82, 16
PICTURE = [START, *[ROW] * ROWS, END]
ONE = [2, 7, 11, *PICTURE, 40, 41, 9, 33, 12, 70]
TWO = [2, 7, *PICTURE, 40, 5, *PICTURE, 41, 9, 33]


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    rope = lambda theta: {"rope_type": "default", "rope_theta": theta}
    text = transformers.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, sliding_window=12, max_position_embeddings=128,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"], bos_token_id=2, eos_token_id=1,
        pad_token_id=0, rope_parameters={"full_attention": rope(1e6), "sliding_attention": rope(1e4)})
    vision = transformers.SiglipVisionConfig(
        hidden_size=HIDDEN, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=SIDE,
        patch_size=4, vision_use_head=False)
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=ROWS, boi_token_index=START, eoi_token_index=END,
        image_token_index=ROW, attn_implementation="eager")
    model = transformers.Gemma3ForConditionalGeneration(config)
    rng = np.random.default_rng(11)
    for key, weight in model.named_parameters():
        noise = rng.standard_normal(tuple(weight.shape))
        if "norm" in key and not ("layer_norm" in key or "layernorm" in key and "vision" in key):
            noise = 0.3 * noise
        elif "norm" in key:
            noise = 0.3 * noise + (1.0 if key.endswith("weight") else 0.0)
        elif weight.dim() >= 2 and "embed" not in key:
            fan = weight.shape[0] if "mm_input" in key else np.prod(weight.shape[1:])
            noise = noise / np.sqrt(fan)
        elif weight.dim() == 1:
            noise = 0.3 * noise
        elif "patch_embedding" in key:
            noise = noise / np.sqrt(np.prod(weight.shape[1:]))
        weight.data = torch.from_numpy(np.asarray(noise)).half().float()
    model.tie_weights()
    model = model.float().eval()

    pixels = rng.uniform(-1, 1, (2, 3, SIDE, SIDE)).astype(np.float32)
    pictures = torch.from_numpy(pixels)

    def logits(tokens, count):
        ids = torch.tensor([tokens])
        with torch.no_grad():
            return model(input_ids=ids, pixel_values=pictures[:count], token_type_ids=(ids == ROW).long(),
                         attention_mask=torch.ones_like(ids), use_cache=False).logits[0].numpy()

    with torch.no_grad():
        rows = model.model.get_image_features(pictures).pooler_output.numpy()
    assert rows.shape == (2, ROWS, HIDDEN)
    pixels.tofile(out / "pixels.f32")
    rows.astype(np.float32).tofile(out / "rows.f32")
    logits(ONE, 1).astype(np.float32).tofile(out / "logits.f32")
    logits(TWO, 2).astype(np.float32).tofile(out / "two.f32")

    model.half().save_pretrained(out / "saved")
    saved = out / "saved"
    (out / "config.json").write_text((saved / "config.json").read_text())
    (saved / "model.safetensors").rename(out / "model.safetensors")
    for rest in saved.iterdir():
        rest.unlink()
    saved.rmdir()
    processor = {"image_processor_type": "Gemma3ImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                 "rescale_factor": 1 / 255, "resample": 2, "size": {"height": SIDE, "width": SIDE}}
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")


main(Path(sys.argv[1]))
