"""Makes the tiny exports of this folder, and what their graphs give (`golden.json`), with the tools that people use.

    pip install onnxruntime-genai==0.18.0 onnxruntime==1.31.1 onnx==1.23.2 onnx-ir==1.1.0 torch==2.15.0 transformers==5.23.0
    python make.py [builder] [genai_quark] [optimum] [transformers_js] [sentence] [heads] [pipeline]

`genai-*` come from onnxruntime-genai's builder, `genai-quark` out of what `narthex export --format quark` (the program is
NARTHEX, or else target/debug/narthex) writes of a model of `../families`; `pipeline` is such a model in stages, as Olive makes
them for NPUs. The others have the files, names and shapes of Optimum's exports: two graphs for the beginning of a sequence and
for one token after a past (`optimum-two`), the same merged into one with an `If` (`optimum-merged`), and a decoder of embedded
tokens beside its embedding (`transformers-js`). `sentence` is an encoder in the layout of sentence-transformers; `answers`,
`masked` and `reranker` are heads on the encoders of `crates/device/tests/goldens/encoders`, whose `expected.json` says what
they give.
Everywhere else the logits are those that ONNX Runtime's own Python package gives for the export as it is, the whole sequence
at once, or window after window as a pipeline's stages take it.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel,
                          DistilBertForQuestionAnswering, DynamicCache, LlamaConfig, LlamaForCausalLM, Phi3Config,
                          Phi3ForCausalLM, PreTrainedTokenizerFast)

warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).parent
TOKENS = [17, 200, 3, 99, 42, 255, 7, 130, 61]
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def tokenizer(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:253]
    tokens = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(SPECIAL + alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def random(model, std):
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=std)
    return model.eval()


COMMON = dict(vocab_size=256, num_hidden_layers=2, bos_token_id=None, eos_token_id=0, pad_token_id=0,
              max_position_embeddings=128, tie_word_embeddings=False)


def golden(folder, logits, tokens=TOKENS):
    rows = [[float(f"{x:.5g}") for x in row] for row in np.asarray(logits, dtype=np.float64)]
    (folder / "golden.json").write_text(json.dumps(dict(tokens=tokens, rows=rows)) + "\n")


def run(session, **feeds):
    """One run of a decoder from the beginning, with an empty past where it takes one."""
    wanted = {value.name: value for value in session.get_inputs()}
    length = len(TOKENS)
    feeds["attention_mask"] = np.ones((1, length), dtype=np.int64)
    feeds["position_ids"] = np.arange(length)[None]
    feeds["use_cache_branch"] = np.array([False])
    for name, value in wanted.items():
        if name.startswith("past"):
            dtype = np.float16 if value.type == "tensor(float16)" else np.float32
            size = [n if isinstance(n, int) else 16 for n in value.shape]
            feeds[name] = np.zeros((1, size[1], 0, size[3]), dtype)
    return session.run(["logits"], {name: feed for name, feed in feeds.items() if name in wanted})[0][0]


def built(model, provider, folder):
    """A folder of onnxruntime-genai's builder."""
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as source:
        random(model, 0.2).save_pretrained(source)
        tokenizer(source)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", folder, "-p", "int4"]
        subprocess.run(command + ["-e", provider, "-c", source], check=True, capture_output=True)


def genai(name, model, provider):
    folder = HERE / name
    built(model, provider, folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    golden(folder, run(session, input_ids=np.array([TOKENS])))


def genai_quark():
    folder, models = HERE / "genai-quark", HERE.parent / "families"
    with tempfile.TemporaryDirectory() as temporary:
        source, export = pathlib.Path(temporary) / "tiny", pathlib.Path(temporary) / "export"
        source.mkdir()
        for file in ["llama/config.json", "llama/model.safetensors", "tokenizer.json"]:
            shutil.copy(models / file, source)
        narthex = os.environ.get("NARTHEX", "target/debug/narthex")
        subprocess.run([narthex, "export", source, export, "--format", "quark", "--group", "32"], check=True)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", export, "-o", folder, "-p", "int4"]
        subprocess.run(command + ["-e", "cpu", "-c", source], check=True, capture_output=True)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    tokens = [token % 80 for token in TOKENS]
    golden(folder, run(session, input_ids=np.array([tokens])), tokens)


class Flat(torch.nn.Module):
    """A decoder whose cache goes in and comes out as a list of tensors."""

    def __init__(self, model, takes):
        super().__init__()
        self.model, self.takes = model, takes

    def forward(self, x, attention_mask, position_ids, *past):
        cache = DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(**{self.takes: x}, attention_mask=attention_mask, position_ids=position_ids,
                         past_key_values=cache, use_cache=True)
        return (out.logits, *[part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)])


def export(module, path, takes, new, past):
    """A decoder's graph, traced with some new tokens after a past of some length; 0 leaves the past out."""
    config = module.model.config
    x = torch.tensor([TOKENS[:new]])
    if takes == "inputs_embeds":
        x = module.model.get_input_embeddings()(x).detach()
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    parts = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    pasts = [f"past_key_values.{part}" for part in parts] if past else []
    presents = [f"present.{part}" for part in parts]
    axes = {takes: {0: "batch_size", 1: "sequence_length"}, "attention_mask": {0: "batch_size", 1: "total_length"},
            "position_ids": {0: "batch_size", 1: "sequence_length"}, "logits": {0: "batch_size", 1: "sequence_length"}}
    axes |= {name: {0: "batch_size", 2: "past_length"} for name in pasts}
    axes |= {name: {0: "batch_size", 2: "total_length"} for name in presents}
    values = (x, torch.ones(1, past + new, dtype=torch.long), torch.arange(past, past + new)[None],
              *[torch.randn(1, heads, past, size) for _ in pasts])
    torch.onnx.export(module, values, path, input_names=[takes, "attention_mask", "position_ids", *pasts],
                      output_names=["logits", *presents], dynamic_axes=axes, opset_version=14, dynamo=False)
    shorten(path)


def shorten(path):
    """Short names between a graph's ends, which are half of a tiny file."""
    model = onnx.load(path)
    short = {}
    ends = {value.name for value in [*model.graph.input, *model.graph.output]} | {""}
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        for names in (node.input, node.output):
            names[:] = [n if n in ends else short.setdefault(n, f"v{len(short)}") for n in names]
    for constant in model.graph.initializer:
        constant.name = short.setdefault(constant.name, constant.name)
    onnx.save(model, path)


def llama(layers):
    torch.manual_seed(7)
    config = LlamaConfig(**dict(COMMON, num_hidden_layers=layers), hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1)
    config._attn_implementation = "eager"
    return random(LlamaForCausalLM(config), 0.3)


def settle(folder, model, logits):
    """The files beside a decoder's graphs; its logits must be those of the model that it was made of."""
    expected = model(torch.tensor([TOKENS])).logits[0].detach().numpy()
    assert np.abs(expected - logits).max() < 1e-4, np.abs(expected - logits).max()
    tokenizer(folder)
    (folder / "config.json").write_text(model.config.to_json_string())
    golden(folder, logits)


def merged(first, other):
    """One graph of two, as `optimum.onnx.merge_decoders` makes it: constants in front, the graphs as branches."""
    constants, bodies = {}, []
    for prefix, graph in (("first/", first.graph), ("next/", other.graph)):
        own = {c.name for c in graph.initializer} | {o for n in graph.node for o in n.output}
        own -= {o.name for o in graph.output}
        for node in graph.node:
            node.name = prefix + node.name
            for names in (node.input, node.output):
                names[:] = [prefix + name if name in own else name for name in names]
        for constant in graph.initializer:
            constant.name = prefix + constant.name
            constants[constant.name] = constant
        bodies.append(helper.make_graph(list(graph.node), prefix, [], list(graph.output)))
    branch = helper.make_node("If", ["use_cache_branch"], [o.name for o in other.graph.output], name="If",
                              then_branch=bodies[1], else_branch=bodies[0])
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph([branch], "merged", [*other.graph.input, flag], list(other.graph.output),
                              list(constants.values()))
    return helper.make_model(graph, opset_imports=list(other.opset_import), ir_version=8)


def optimum():
    model = llama(1)
    folder, one = HERE / "optimum-two", HERE / "optimum-merged"
    for each in (folder, one):
        each.mkdir(exist_ok=True)
    first, other = folder / "decoder_model.onnx", folder / "decoder_with_past_model.onnx"
    # As in Optimum, the graph after a past is traced with one new token.
    export(Flat(model, "input_ids"), first, "input_ids", 4, 0)
    export(Flat(model, "input_ids"), other, "input_ids", 1, 4)
    whole = onnxruntime.InferenceSession(first)
    settle(folder, model, run(whole, input_ids=np.array([TOKENS])))
    path = one / "decoder_model_merged.onnx"
    onnx.save(merged(onnx.load(first), onnx.load(other)), path)
    settle(one, model, run(onnxruntime.InferenceSession(path), input_ids=np.array([TOKENS])))


def transformers_js():
    model = llama(2)
    folder = HERE / "transformers-js"
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    decoder, embedding = folder / "onnx/decoder_model_merged.onnx", folder / "onnx/embed_tokens.onnx"
    export(Flat(model, "inputs_embeds"), decoder, "inputs_embeds", 3, 4)
    torch.onnx.export(model.get_input_embeddings(), (torch.tensor([TOKENS]),), embedding, input_names=["input_ids"],
                      output_names=["inputs_embeds"], opset_version=14, dynamo=False,
                      dynamic_axes={n: {0: "batch_size", 1: "sequence_length"} for n in ("input_ids", "inputs_embeds")})
    rows = onnxruntime.InferenceSession(embedding).run(None, {"input_ids": np.array([TOKENS])})[0]
    settle(folder, model, run(onnxruntime.InferenceSession(decoder), inputs_embeds=rows))


class Rows(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state


def sentence():
    torch.manual_seed(7)
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                        max_position_embeddings=32, attn_implementation="eager")
    model = random(BertModel(config, add_pooling_layer=False), 0.3)
    folder = HERE / "sentence"
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    text = [[2, 9, 33, 14, 3], [2, 40, 3]]
    ids = torch.tensor([text[0], text[1] + [0, 0]])
    mask, types = (ids != 0).long(), torch.zeros_like(ids)
    types[0, 3:] = 1
    whole = Rows(model).eval()
    torch.onnx.export(whole, (ids, mask, types), folder / "onnx/model.onnx", input_names=names,
                      output_names=["last_hidden_state"], opset_version=14, dynamo=False,
                      dynamic_axes={n: {0: "batch_size", 1: "sequence_length"} for n in [*names, "last_hidden_state"]})
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    rows = session.run(None, dict(zip(names, (ids.numpy(), mask.numpy(), types.numpy()))))[0]
    expected = whole(ids, mask, types).detach().numpy()
    assert np.abs((expected - rows)[mask.numpy() == 1]).max() < 1e-5
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *[f"w{i}" for i in range(60)]]
    tokens = Tokenizer(models.WordPiece(vocab={w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                          special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(tokenizer_object=tokens, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
                            unk_token="[UNK]", model_max_length=24).save_pretrained(folder)
    (folder / "config.json").write_text(config.to_json_string())
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
               for i, (kind, path) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    texts = [dict(tokens=text[0], second=3, rows=rows[0].tolist()), dict(tokens=text[1], second=3, rows=rows[1][:3].tolist())]
    (folder / "golden.json").write_text(json.dumps(dict(texts=texts)) + "\n")


class Head(torch.nn.Module):
    """An encoder with a head, which gives what it is asked for."""

    def __init__(self, model, inputs, outputs):
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *values):
        found = self.model(**dict(zip(self.inputs, values)))
        return tuple(found[name] for name in self.outputs)


def head(name, family, kind, inputs, outputs):
    """A head of an encoder whose checkpoint stands elsewhere, exported under Optimum's names."""
    source = HERE.parents[3] / "device/tests/goldens/encoders" / family
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = [kind.__name__]
    if "start_logits" in outputs:
        del config["id2label"]
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (folder / file).write_bytes((source / file).read_bytes())
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    (folder / "model.safetensors").unlink()
    ids = torch.tensor([[2, 9, 33, 14, 3], [2, 40, 3, 0, 0]])
    values = dict(input_ids=ids, attention_mask=(ids != 0).long(), token_type_ids=torch.zeros_like(ids))
    axes = {n: {0: "batch_size", 1: "sequence_length"} for n in [*inputs, *outputs]}
    if kind is BertForSequenceClassification:
        axes["logits"] = {0: "batch_size"}
    torch.onnx.export(Head(model, inputs, outputs), tuple(values[n] for n in inputs), folder / "model.onnx",
                      input_names=inputs, output_names=outputs, opset_version=14, dynamo=False, dynamic_axes=axes)
    shorten(folder / "model.onnx")


WINDOW = 4


def lengths(model):
    """Olive's AttentionMaskToSequenceLengths: attention reads two lengths, and nothing reads the mask."""
    graph = model.graph
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    for place, name, shape in ((5, "past_seq_len", ["batch_size", 1]), (6, "total_seq_len", [])):
        for node in attention:
            node.input[place] = name
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT32, shape))
    kept, needed = [], {value.name for value in graph.output}
    for node in reversed(graph.node):
        if needed & set(node.output):
            kept.insert(0, node)
            needed |= set(node.input)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(kept)
    for values in (graph.input, graph.initializer):
        unused = [value for value in values if value.name not in needed]
        for value in unused:
            values.remove(value)


def fixed(model, sequence):
    """Olive's StaticLLM: one sequence, and so many tokens."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            extent = {"batch_size": 1, "sequence_length": sequence}.get(dim.dim_param)
            if extent:
                dim.dim_value = extent
    return model


def pipeline():
    """A decoder as Olive splits it for NPUs: embedding, layers for a window of tokens and for one, head."""
    folder = HERE / "pipeline"
    folder.mkdir(exist_ok=True)
    small = dict(COMMON, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1)
    with tempfile.TemporaryDirectory() as temporary:
        whole = pathlib.Path(temporary)
        built(LlamaForCausalLM(LlamaConfig(**small)), "cpu", whole)
        model = onnx.load(whole / "model.onnx")
        config = json.loads((whole / "genai_config.json").read_text())
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (folder / file).write_text((whole / file).read_text())
    lengths(model)
    head = next(node for node in model.graph.node if node.output[0] == "logits")
    rows = next(node for node in model.graph.node if "input_ids" in node.input).output[0]
    cut = {rows: "/embed/QuantizeLinear_Output", head.input[0]: "/final_norm/output"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [cut.get(name, name) for name in names]
    rows, states = cut.values()
    model.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", "sequence_length", 32])
                                  for name in cut.values())
    part = onnx.utils.Extractor(model).extract_model
    names = [[value.name for value in values] for values in (model.graph.input, model.graph.output)]
    pasts, presents = ([name for name in each if "." in name] for each in names)
    layers = part([rows, *pasts, "past_seq_len", "total_seq_len"], [*presents, states])
    onnx.save(part(["input_ids"], [rows]), folder / "embeddings.onnx")
    onnx.save(part([states], ["logits"]), folder / "lm_head.onnx")
    data = dict(save_as_external_data=True, location="transformer.onnx.data", size_threshold=64)
    (folder / "transformer.onnx.data").unlink(missing_ok=True)
    onnx.save(layers, folder / "transformer.onnx", **data)
    layers = onnx.load(folder / "transformer.onnx", load_external_data=False)
    (folder / "transformer.onnx").unlink()
    for name, sequence in (("context", WINDOW), ("iterator", 1)):
        onnx.save(fixed(layers, sequence), folder / f"{name}.onnx")
    decoder = config["model"]["decoder"]
    del decoder["filename"]
    config["model"]["type"] = "decoder-pipeline"
    decoder["inputs"] |= dict(past_sequence_length="past_seq_len", total_sequence_length="total_seq_len")
    decoder["sliding_window"] = dict(window_size=WINDOW, pad_value=0, alignment="left", slide_key_value_cache=False)
    io = dict(inputs=[rows, *pasts, "past_seq_len", "total_seq_len"], outputs=[*presents, states])
    decoder["pipeline"] = [dict(
        embeddings=dict(filename="embeddings.onnx", inputs=["input_ids"], outputs=[rows]),
        context=dict(filename="context.onnx", **io, run_on_token_gen=False),
        iterator=dict(filename="iterator.onnx", **io, run_on_prompt=False),
        lm_head=dict(filename="lm_head.onnx", inputs=[states], outputs=["logits"], is_lm_head=True))]
    (folder / "genai_config.json").write_text(json.dumps(config, indent=2) + "\n")
    golden(folder, windows(folder, pasts, presents, rows, states))


def windows(folder, pasts, presents, rows, states):
    """What the stages give, window after window, as onnxruntime-genai runs them: the last window is filled up on the right."""
    stages = {name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("embeddings", "context", "lm_head")}
    cache = {name: np.zeros((1, 1, 128, 16), np.float32) for name in pasts}
    found = []
    for at in range(0, len(TOKENS), WINDOW):
        tokens = np.array([(TOKENS[at:at + WINDOW] + [0] * WINDOW)[:WINDOW]])
        x = stages["embeddings"].run(None, {"input_ids": tokens})[0]
        feeds = {rows: x, **cache, "past_seq_len": np.array([[at + WINDOW - 1]], np.int32),
                 "total_seq_len": np.array(at + WINDOW, np.int32)}
        *kept, x = stages["context"].run([*presents, states], feeds)
        cache = dict(zip(pasts, kept))
        found.append(stages["lm_head"].run(None, {states: x})[0][0])
    return np.concatenate(found)[:len(TOKENS)]


def heads():
    names = ["input_ids", "attention_mask", "token_type_ids"]
    head("answers", "distilbert", DistilBertForQuestionAnswering, names[:2], ["start_logits", "end_logits"])
    head("masked", "bert", BertForMaskedLM, names, ["logits"])
    head("reranker", "bert", BertForSequenceClassification, names, ["logits"])


def builder():
    wide = dict(COMMON, hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
    genai("genai-cpu", LlamaForCausalLM(LlamaConfig(**wide)), "cpu")
    scaling = dict(type="longrope", short_factor=[1.0] * 8, long_factor=[2.0] * 8)
    long = dict(wide, rope_scaling=scaling, original_max_position_embeddings=64, sliding_window=None)
    genai("genai-dml", Phi3ForCausalLM(Phi3Config(**long)), "dml")


if __name__ == "__main__":
    every = [builder, genai_quark, optimum, transformers_js, sentence, heads, pipeline]
    for make in every:
        if make.__name__ in sys.argv[1:] or not sys.argv[1:]:
            make()
