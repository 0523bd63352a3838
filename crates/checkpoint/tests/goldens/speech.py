"""A tiny random Whisper with the logits and the attention that the reference implementation gives.

Run with transformers 5.23, torch, numpy, safetensors and ctranslate2 4.8:

    python speech.py OUT

OUT gets `config.json`, `generation_config.json`, `tokenizer.json`, `model.safetensors`, `model.bin` (the same weights in the
format of CTranslate2), `features.f32` (a spectrogram), `logits.f32` (a row for each of TOKENS) and `alignment.f32` (the
attention of the alignment heads to the encoder's rows, `[heads, tokens, positions]`). `short_logits.f32` and
`short_alignment.f32` are those of the first SHORT rows of the window, from a model with so many positions. Weights are
rounded to half precision first.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

BINS, POSITIONS, HIDDEN, HEADS = 8, 20, 32, 4
SHORT = 7
ALIGNMENT = [[1, 0], [2, 3], [2, 1]]
# Bytes, then the control tokens of Whisper, then the timestamps.
CONTROL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
           "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
VOCAB = 256 + len(CONTROL) + 1501
TOKENS = [257, 258, 261, 266, 40, 41, 99, 33, 290, 290, 77, 256]


def byte_texts():
    """The characters by which byte-level tokenizers write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def tokenizer():
    texts = byte_texts()
    added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(CONTROL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "vocab": {texts[byte]: byte for byte in range(256)},
             "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    config = transformers.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=BINS, d_model=HIDDEN, encoder_layers=2, encoder_attention_heads=HEADS,
        encoder_ffn_dim=48, decoder_layers=3, decoder_attention_heads=HEADS, decoder_ffn_dim=64,
        max_source_positions=POSITIONS, max_target_positions=24, activation_function="gelu",
        bos_token_id=256, eos_token_id=256, pad_token_id=256, decoder_start_token_id=257,
        suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager")
    model = transformers.WhisperForConditionalGeneration(config)
    rng = np.random.default_rng(7)
    for key, weight in model.named_parameters():
        noise = rng.standard_normal(tuple(weight.shape))
        if "layer_norm" in key:
            noise = 0.3 * noise + (1.0 if key.endswith("weight") else 0.0)
        elif weight.dim() >= 2 and "embed" not in key:
            noise = noise / np.sqrt(np.prod(weight.shape[1:]))
        weight.data = torch.from_numpy(0.3 * noise if weight.dim() == 1 and "norm" not in key else noise).half().float()
    model.tie_weights()
    model = model.float().eval()
    features = rng.standard_normal((1, BINS, 2 * POSITIONS)).astype(np.float32)
    logits, alignment = reference(model, features)

    tensors = {key: value.numpy().astype(np.float16) for key, value in model.state_dict().items()
               if key != "proj_out.weight"}
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, out / "model.safetensors",
              metadata={"format": "pt"})
    keys = config.to_diff_dict() | {"architectures": ["WhisperForConditionalGeneration"]}
    (out / "config.json").write_text(json.dumps(keys, indent=1, sort_keys=True) + "\n")
    generation = {"alignment_heads": ALIGNMENT, "begin_suppress_tokens": [32, 256], "is_multilingual": True,
                  "suppress_tokens": [1, 2, 7]}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    (out / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False) + "\n")
    features.tofile(out / "features.f32")
    logits.tofile(out / "logits.f32")
    alignment.tofile(out / "alignment.f32")
    write_short(model, features, out)
    (out / "model.bin").write_bytes(ct2(model))


def reference(model, features):
    """The logits after TOKENS and the attention of the alignment heads."""
    with torch.no_grad():
        run = model(input_features=torch.from_numpy(features), decoder_input_ids=torch.tensor([TOKENS]),
                    output_attentions=True, use_cache=False)
    alignment = np.stack([run.cross_attentions[layer][0, head].numpy() for layer, head in ALIGNMENT])
    return run.logits[0].numpy(), alignment.astype(np.float32)


def write_short(model, features, out):
    """Writes the reference for a window with the first SHORT rows."""
    config = copy.deepcopy(model.config)
    config.max_source_positions = SHORT
    weights = model.state_dict()
    name = "model.encoder.embed_positions.weight"
    weights[name] = weights[name][:SHORT]
    short = transformers.WhisperForConditionalGeneration(config).float().eval()
    short.load_state_dict(weights)
    logits, alignment = reference(short, np.ascontiguousarray(features[:, :, : 2 * SHORT]))
    logits.tofile(out / "short_logits.f32")
    alignment.tofile(out / "short_alignment.f32")


def ct2(model):
    """The bytes of `model.bin`, from the specification of CTranslate2's own converter."""
    loader = ctranslate2.converters.transformers.WhisperLoader()
    spec = ctranslate2.specs.WhisperSpec(2, HEADS, 3, HEADS)
    loader.set_encoder(spec.encoder, model.model.encoder)
    loader.set_decoder(spec.decoder, model.model.decoder)
    loader.set_linear(spec.decoder.projection, model.proj_out)
    spec.register_vocabulary([str(token) for token in range(VOCAB)])
    spec.validate()
    spec.optimize(quantization="float16")
    with tempfile.TemporaryDirectory() as folder:
        ctranslate2.specs.ModelSpec.save(spec, folder)
        return (Path(folder) / "model.bin").read_bytes()


main(Path(sys.argv[1]))
