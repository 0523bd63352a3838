#!/usr/bin/env python3
"""Writes a Llama with random weights as a GGUF file in F16, with the tokenizer of another GGUF file.

    python random_llama.py TOKENIZER.gguf OUT.gguf --layers 24 --hidden 896 --intermediate 4864 --heads 14 --kv-heads 2

The embedding is also the head. The weights are drawn so that activations keep their scale.
"""

import argparse

import gguf
import numpy

NAME = "llama"
CONTEXT = 8192


def copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """Copies the tokenizer's fields; returns the size of its vocabulary."""
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    for option in ("--layers", "--hidden", "--intermediate", "--heads", "--kv-heads"):
        parser.add_argument(option, type=int, required=True)
    options = parser.parse_args()
    writer = gguf.GGUFWriter(options.out, NAME)
    vocabulary = copy_tokenizer(gguf.GGUFReader(options.tokenizer), writer)
    head = options.hidden // options.heads
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(options.hidden)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(options.intermediate)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    random = numpy.random.default_rng(7)

    def matrix(name: str, rows: int, columns: int):
        values = random.standard_normal((rows, columns), numpy.float32) * columns**-0.5
        writer.add_tensor(f"{name}.weight", values.astype(numpy.float16))

    def norm(name: str):
        writer.add_tensor(f"{name}.weight", numpy.ones(options.hidden, numpy.float32))

    matrix("token_embd", vocabulary, options.hidden)
    norm("output_norm")
    kv = options.kv_heads * head
    for layer in range(options.layers):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        matrix(f"{block}.attn_q", options.hidden, options.hidden)
        matrix(f"{block}.attn_k", kv, options.hidden)
        matrix(f"{block}.attn_v", kv, options.hidden)
        matrix(f"{block}.attn_output", options.hidden, options.hidden)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", options.intermediate, options.hidden)
        matrix(f"{block}.ffn_up", options.intermediate, options.hidden)
        matrix(f"{block}.ffn_down", options.hidden, options.intermediate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
