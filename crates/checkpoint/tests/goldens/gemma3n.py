"""A tiny random Gemma 3n with its towers, and what the reference implementation makes of pictures and sounds.

Run with transformers 5.23, timm 1.0.31, torch, numpy and safetensors:

    python gemma3n.py OUT

OUT gets `config.json`, `preprocessor_config.json`, `model.safetensors`, `pixels.f32` (two pictures, `[2, 3, 64, 64]`),
`rows.f32` (the rows of both, each followed by the embedding of the token that ends a picture), `logits.f32` (a row for each
of the tokens of a chat with one picture) and `two.f32` (with two pictures). Weights are rounded to half precision first.

`sounds.f32` has the features of three sounds, `[157 + 157 + 61, 16]`, `sound_rows.f32` the rows of each: those of the sound,
those of the token that stands for missing ones, and the embedding of the token that ends a sound. `heard.f32` has the logits
of a chat with the third sound, `heard_two.f32` with the first two, `seen_and_heard.f32` with the first picture and the first
sound.

The vision tower has every kind of block of MobileNetV5 300M, with fewer blocks and channels: `model_args` of `vision_config` states
them, as timm takes them. timm fixes the width of the encoder's output, so the last module is replaced by a narrower one.
`shapes.txt` gets the names and shapes of the weights of MobileNetV5 300M itself, `audio_shapes.txt` those of the published
audio tower.
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
AUDIO_OFFSET, SOUND_START, SOUND_END, SOUND_ROW, SOUND_ROWS = 85, 79, 85, 86, 10
BINS, FRAMES = 16, [157, 157, 61]
SOUND = [SOUND_START, *[SOUND_ROW] * SOUND_ROWS, SOUND_END]
HEARD = [2, 7, 11, *SOUND, 40, 41, 9, 33]
HEARD_TWO = [2, 7, *SOUND, 40, 5, *SOUND, 41, 9]
SEEN_AND_HEARD = [2, 7, *PICTURE, 40, *SOUND, 41, 9, 33]
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
        vocab_size=VOCAB - AUDIO_OFFSET, vocab_offset=AUDIO_OFFSET, input_feat_size=BINS, hidden_size=16,
        conf_num_attention_heads=2, conf_num_hidden_layers=2, conf_attention_chunk_size=6, conf_attention_context_left=9,
        conf_attention_context_right=1, conf_attention_logit_cap=5.0, conf_conv_kernel_size=3, sscp_conv_channel_size=(4, 6),
        gradient_clipping=2.0)
    return transformers.Gemma3nConfig(
        text_config=text, vision_config=vision, audio_config=audio, boi_token_id=START, eoi_token_id=END, image_token_id=ROW,
        audio_token_id=SOUND_ROW, eoa_token_id=SOUND_END, boa_token_id=SOUND_START, vision_soft_tokens_per_image=ROWS,
        audio_soft_tokens_per_image=SOUND_ROWS, attn_implementation="eager")


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

    features = rng.normal(-3, 2, (sum(FRAMES), BINS)).astype(np.float16).astype(np.float32)
    sounds = torch.from_numpy(features).split(FRAMES)

    def logits(tokens, count, heard=()):
        ids = torch.tensor([tokens])
        media = {"pixel_values": pictures[:count]} if count else {}
        if heard:
            media["input_features"] = torch.stack([sounds[index] for index in heard])
            media["input_features_mask"] = torch.ones(media["input_features"].shape[:2], dtype=torch.bool)
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **media).logits[0].numpy()

    def sound_rows(sound):
        rows = model.model.get_audio_features(sound[None], torch.zeros(1, len(sound), dtype=torch.bool)).pooler_output[0]
        fixed = model.model.embed_audio(input_ids=torch.tensor([[VOCAB - 1, SOUND_END]]))[0]
        return torch.cat([rows, fixed[:1].expand(SOUND_ROWS - len(rows), -1), fixed[1:]]).numpy()

    with torch.no_grad():
        rows = model.model.get_image_features(pictures).pooler_output
        end = model.model.embed_vision(input_ids=torch.tensor([[END]])).expand(2, 1, HIDDEN)
        rows = torch.cat([rows, end], 1).numpy()
    assert rows.shape == (2, ROWS + 1, HIDDEN)
    pixels.tofile(out / "pixels.f32")
    rows.astype(np.float32).tofile(out / "rows.f32")
    logits(ONE, 1).astype(np.float32).tofile(out / "logits.f32")
    logits(TWO, 2).astype(np.float32).tofile(out / "two.f32")

    with torch.no_grad():
        rows = np.stack([sound_rows(sound) for sound in sounds])
    features.tofile(out / "sounds.f32")
    rows.astype(np.float32).tofile(out / "sound_rows.f32")
    logits(HEARD, 0, [2]).astype(np.float32).tofile(out / "heard.f32")
    logits(HEARD_TWO, 0, [0, 1]).astype(np.float32).tofile(out / "heard_two.f32")
    logits(SEEN_AND_HEARD, 1, [0]).astype(np.float32).tofile(out / "seen_and_heard.f32")

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
                 "rescale_factor": 1 / 255, "resample": 2, "size": {"height": SIDE, "width": SIDE},
                 "feature_extractor_type": "Gemma3nAudioFeatureExtractor", "feature_size": BINS}
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")

    with torch.device("meta"):
        published = timm.create_model("mobilenetv5_300m_enc")
        audio = transformers.models.gemma3n.modeling_gemma3n.Gemma3nAudioEncoder(transformers.Gemma3nAudioConfig())
    for name, module in [("shapes.txt", published), ("audio_shapes.txt", audio)]:
        lines = [f"{name} {' '.join(map(str, weight.shape))}\n" for name, weight in module.named_parameters()]
        (out / name).write_text("".join(lines))


main(Path(sys.argv[1]))
