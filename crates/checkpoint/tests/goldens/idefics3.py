"""A tiny random Idefics3, as SmolVLM is one, and what the reference implementation makes of a picture in tiles.

Run with transformers 5.23, torch, numpy and safetensors:

    python idefics3.py OUT

OUT gets `config.json`, `preprocessor_config.json`, `model.safetensors`, `pixels.f32` (two tiles and the whole picture,
`[3, 3, 32, 32]`), `rows.f32` (the rows of each) and `logits.f32` (a row for each of the tokens of a chat with this picture).
Weights are rounded to half precision first.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

VOCAB, HIDDEN, SIDE, ROWS = 96, 32, 32, 16
IMAGE, EDGE, GLOBAL, FIRST, SECOND = 80, 81, 82, 83, 84
TILES = [token for place in [FIRST, SECOND] for token in [EDGE, place, *[IMAGE] * ROWS]]
TOKENS = [2, 7, 11, *TILES, 13, 13, EDGE, GLOBAL, *[IMAGE] * ROWS, EDGE, 40, 41, 9, 33, 12, 70]


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    text = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=2, eos_token_id=1,
        pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 1e5}, tie_word_embeddings=False)
    vision = transformers.models.idefics3.Idefics3VisionConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=SIDE, patch_size=4)
    config = transformers.Idefics3Config(
        text_config=text, vision_config=vision, image_token_id=IMAGE, scale_factor=2, tie_word_embeddings=False,
        attn_implementation="eager")
    model = transformers.Idefics3ForConditionalGeneration(config)
    rng = np.random.default_rng(13)
    for key, weight in model.named_parameters():
        noise = rng.standard_normal(tuple(weight.shape))
        if "norm" in key:
            noise = 0.3 * noise + (1.0 if key.endswith("weight") else 0.0)
        elif weight.dim() >= 2 and "embed_tokens" not in key and "position" not in key:
            noise = noise / np.sqrt(np.prod(weight.shape[1:]))
        elif weight.dim() == 1:
            noise = 0.3 * noise
        weight.data = torch.from_numpy(np.asarray(noise)).half().float()
    model = model.float().eval()

    pixels = rng.uniform(-1, 1, (3, 3, SIDE, SIDE)).astype(np.float32)
    pictures = torch.from_numpy(pixels)[None]
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        rows = torch.cat(model.get_image_features(pictures).pooler_output).reshape(3, ROWS, HIDDEN).numpy()
        logits = model(input_ids=ids, pixel_values=pictures, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    pixels.tofile(out / "pixels.f32")
    rows.astype(np.float32).tofile(out / "rows.f32")
    logits.numpy().astype(np.float32).tofile(out / "logits.f32")

    saved = out / "saved"
    model.half().save_pretrained(saved)
    (out / "config.json").write_text((saved / "config.json").read_text())
    (saved / "model.safetensors").rename(out / "model.safetensors")
    for rest in saved.iterdir():
        rest.unlink()
    saved.rmdir()
    processor = {"image_processor_type": "Idefics3ImageProcessor", "do_image_splitting": True, "image_mean": [0.5] * 3,
                 "image_std": [0.5] * 3, "rescale_factor": 1 / 255, "resample": 1, "size": {"longest_edge": 2 * SIDE},
                 "max_image_size": {"longest_edge": SIDE}}
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")


main(Path(sys.argv[1]))
