//! Canonical weight names and their names in files.
//!
//! This module only maps strings with the tables of `family`: canonical names follow `narthex_spec::arch`, file names
//! follow llama.cpp's converter (GGUF) and the `transformers` library (safetensors). It does not handle tensors.

/// Names of one family's weights in a file format.
#[derive(Debug)]
pub(super) struct NameTable {
    /// Table to search for modules that `outer` and `inner` do not list.
    pub(super) base: Option<&'static NameTable>,
    /// Prefixes that a file may add to every name except the head's.
    pub(super) prefixes: &'static [&'static str],
    /// Prefix of a layer's number.
    pub(super) layer: &'static str,
    /// Canonical modules outside layers, each with the file's name.
    pub(super) outer: &'static [(&'static str, &'static str)],
    /// Canonical modules inside a layer, each with the file's name.
    pub(super) inner: &'static [(&'static str, &'static str)],
    /// Canonical modules inside a layer that are a part of a module in the file: the canonical name, the file's name,
    /// and the part. A `#` in the canonical name stands for the number of a matrix in a stack, or for a number in the file's
    /// name if that has one too.
    pub(super) parts: &'static [(&'static str, &'static str, TensorPart)],
    /// Canonical modules outside layers that are one matrix of a stack in the file, without their number: the canonical
    /// name and the file's name.
    pub(super) stacks: &'static [(&'static str, &'static str)],
    /// Stacks in layers whose members are tensors of their own for the other names: the file's name of a stack, and that of
    /// a member, with a `#` for its number.
    pub(super) members: &'static [(&'static str, &'static str)],
    /// Modules of the file that are weights themselves: their names have no suffix such as `.weight`.
    pub(super) without_suffix: &'static [&'static str],
    /// Suffix of the modules whose weight and bias are called gamma and beta in old files, as in TensorFlow.
    pub(super) gamma_and_beta: Option<&'static str>,
}

/// The part of a file's weight that a canonical weight is. Parts of one weight are in the order of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TensorPart {
    /// Queries, in a tensor of queries, keys and values.
    Query,
    /// Keys, in the same tensor.
    Key,
    /// Values, in the same tensor.
    Value,
    /// Gate, in a tensor of gate and up projection.
    Gate,
    /// Up projection, in the same tensor.
    Up,
    /// Half of the rows of each head: its queries, or the gate of its output, by the number of the half.
    HeadHalf(usize),
    /// Part of the input projection of a Mamba-2 layer, by its number: the gate, the inputs of the convolution, the time steps.
    Mamba(usize),
    /// One of three parts of equal size: queries, keys and values of as many heads, by its number.
    Third(usize),
    /// One row for each head, each in its own tensor; the file's name has `*` in place of the head's number.
    PerHead,
    /// One matrix of a stack, by its number.
    Matrix(usize),
    /// Every second row, by the number of the first.
    Alternate(usize),
    /// Half of the rows of a matrix of a stack, by the numbers of the matrix and of the half.
    MatrixHalf(usize, usize),
}

/// A tensor that may contain a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileName {
    /// The file's name.
    pub(super) name: String,
    /// Part of that tensor; `None` for all of it.
    pub(super) part: Option<TensorPart>,
}

impl FileName {
    /// Returns the name of the tensor of one head.
    pub(super) fn of_head(&self, head: usize) -> String {
        self.name.replace('*', &head.to_string())
    }
}

/// Tensors inside layers that are not weights: tables that old exporters stored.
const DERIVED: [&str; 5] = [
    "rotary_emb.inv_freq",
    "attn_rot_embd.weight",
    "attention.self.position_ids",
    ".attn.bias",
    ".attn.masked_bias",
];

impl NameTable {
    /// A table without names; other tables extend it.
    pub(super) const NONE: Self = Self {
        base: None,
        prefixes: &[],
        layer: "",
        outer: &[],
        inner: &[],
        parts: &[],
        stacks: &[],
        members: &[],
        without_suffix: &[],
        gamma_and_beta: None,
    };

    /// Returns the names under which a file may have the weight `canonical`, the most usual first; empty if `canonical`
    /// is not a canonical name.
    pub(super) fn file_names(&self, canonical: &str) -> Vec<FileName> {
        let Some((module, leaf)) = canonical.rsplit_once('.') else { return Vec::new() };
        let part = self.part(canonical);
        let path = match inside_layer(module) {
            Some((layer, module)) => {
                let fused = self.part_of(module).map(|(file, _)| file);
                let file = fused.or_else(|| self.lookup(|table| table.inner, module));
                file.map(|file| format!("{}{layer}.{file}", self.layer))
            }
            None => match self.stacked(module) {
                Some((file, _)) => Some(file.to_owned()),
                None => self.lookup(|table| table.outer, module),
            },
        };

        let Some(path) = path else { return Vec::new() };
        let bare = self.without_suffix.iter().any(|module| path.ends_with(module));
        let name = if bare { path.clone() } else { format!("{path}.{leaf}") };

        let mut names: Vec<String> = self.prefixes.iter().map(|prefix| format!("{prefix}{name}")).collect();
        if module == "head" {
            // The head is usually outside the model, so its name without a prefix comes first.
            names.sort_by_key(String::len);
        }

        if self.gamma_and_beta.is_some_and(|end| path.ends_with(end)) {
            let old = if leaf == "weight" { "gamma" } else { "beta" };
            names.extend(self.prefixes.iter().map(|prefix| format!("{prefix}{path}.{old}")));
        }
        names.into_iter().map(|name| FileName { name, part }).collect()
    }

    /// Returns the file's name of a module, from this table or its base.
    fn lookup(
        &self,
        rows: fn(&Self) -> &'static [(&'static str, &'static str)],
        module: &str,
    ) -> Option<String> {
        numbered(rows(self), module).or_else(|| self.base?.lookup(rows, module))
    }

    /// Returns the part of the file's tensor that the weight `canonical` is.
    pub(super) fn part(&self, canonical: &str) -> Option<TensorPart> {
        let module = canonical.rsplit_once('.')?.0;
        let Some((_, module)) = inside_layer(module) else {
            return self.stacked(module).map(|(_, number)| TensorPart::Matrix(number));
        };
        self.part_of(module).map(|(_, part)| part)
    }

    /// Returns the module of the file that has the module `module` of a layer as a part, and the part.
    fn part_of(&self, module: &str) -> Option<(String, TensorPart)> {
        self.parts.iter().find_map(|&(name, file, part)| match name.split_once('#') {
            None => (name == module).then(|| (file.to_owned(), part)),
            Some((start, end)) => {
                let number: usize = module.strip_prefix(start)?.strip_suffix(end)?.parse().ok()?;
                let part = match part {
                    TensorPart::MatrixHalf(_, half) => TensorPart::MatrixHalf(number, half),
                    part if file.contains('#') => part,
                    _ => TensorPart::Matrix(number),
                };
                Some((file.replace('#', &number.to_string()), part))
            }
        })
    }

    /// Returns the file's stack that has the matrix `module`, and the number of the matrix in it.
    fn stacked(&self, module: &str) -> Option<(&'static str, usize)> {
        let (stack, number) = module.rsplit_once('.')?;
        let (_, file) = self.stacks.iter().find(|(name, _)| *name == stack)?;
        Some((file, number.parse().ok()?))
    }

    /// Returns whether `file_name` is a weight of a layer, which a graph must use. An unused one means that the model
    /// computes something that its architecture does not state.
    pub(super) fn is_layer_weight(&self, file_name: &str) -> bool {
        self.inside_layers(file_name).any(|rest| !DERIVED.iter().any(|derived| rest.ends_with(derived)))
    }

    /// Returns the number of the layer of a weight.
    pub(super) fn layer_number(&self, file_name: &str) -> Option<usize> {
        self.inside_layers(file_name).find_map(|rest| rest.split('.').next()?.parse().ok())
    }

    /// Returns the rest of a name after the prefix of the layers: `12.attn_q.weight`.
    fn inside_layers<'a>(&self, file_name: &'a str) -> impl Iterator<Item = &'a str> {
        let rests = self.prefixes.iter().filter_map(move |prefix| file_name.strip_prefix(prefix));
        rests.filter_map(|rest| rest.strip_prefix(self.layer))
    }
}

/// Returns the file's name of a module. In the tables, each `#` stands for the number of one of several modules of the same
/// kind; the numbers have the same order in both names.
fn numbered(table: &[(&str, &str)], module: &str) -> Option<String> {
    let words: Vec<&str> = module.split('.').map(|word| if is_number(word) { "#" } else { word }).collect();
    let wanted = words.join(".");
    let (_, file) = table.iter().find(|(name, _)| *name == wanted)?;
    let numbers = module.split('.').filter(|word| is_number(word));
    Some(numbers.fold((*file).to_owned(), |file, number| file.replacen('#', number, 1)))
}

fn is_number(word: &str) -> bool {
    word.parse::<usize>().is_ok()
}

/// Splits a canonical name or module into its layer's number, as text, and the rest inside the layer.
pub(super) fn inside_layer(module: &str) -> Option<(&str, &str)> {
    module.strip_prefix("layers.")?.split_once('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{GGUF, HF};

    fn gguf(family: &str) -> &'static NameTable {
        GGUF.iter().find(|known| known.name == family).unwrap().names
    }

    fn hf(class: &str) -> &'static NameTable {
        HF.iter().find(|known| known.classes.contains(&class)).unwrap().names
    }

    fn check(names: &NameTable, canonical: &str, expect: &[&str]) {
        let names: Vec<String> = names.file_names(canonical).into_iter().map(|place| place.name).collect();
        assert_eq!(names, expect);
    }

    #[test]
    fn names_are_translated() {
        let (llama, bert) = (gguf("llama"), gguf("bert"));
        check(llama, "embed.weight", &["token_embd.weight"]);
        check(llama, "head.weight", &["output.weight"]);
        check(llama, "layers.12.attn.q_proj.bias", &["blk.12.attn_q.bias"]);
        check(llama, "layers.0.mlp_norm.weight", &["blk.0.ffn_norm.weight"]);
        check(bert, "layers.3.mlp_norm.bias", &["blk.3.layer_output_norm.bias"]);
        check(bert, "embed.norm.weight", &["token_embd_norm.weight"]);
        let (llama, bert) = (hf("LlamaForCausalLM"), hf("BertModel"));
        check(llama, "norm.weight", &["model.norm.weight", "norm.weight"]);
        check(llama, "head.weight", &["lm_head.weight", "model.lm_head.weight"]);
        let q = "layers.1.self_attn.q_proj.weight";
        check(llama, "layers.1.attn.q_proj.weight", &[&format!("model.{q}"), q]);
        let up = "encoder.layer.5.intermediate.dense.bias";
        check(bert, "layers.5.mlp.up_proj.bias", &[up, &format!("bert.{up}")]);
        let up = "encoder.layer.5.ffn.2.intermediate.dense.bias";
        let mobile = hf("MobileBertModel");
        check(mobile, "layers.5.ffn.2.up_proj.bias", &[up, &format!("mobilebert.{up}")]);
        check(mobile, "layers.5.ffn.up_proj.bias", &[]);
        let gemma = hf("Gemma3nForConditionalGeneration").file_names("vision.blocks.2.9.attn.k_norm.weight");
        let name = "model.vision_tower.timm_model.blocks.2.9.attn.key.norm.weight";
        assert!(gemma.iter().any(|file| file.name == name), "{gemma:?}");
        check(hf("Gemma3nForConditionalGeneration"), "vision.blocks.2.attn.k_norm.weight", &[]);
        let experts = gguf("qwen3moe").file_names("layers.2.mlp.experts.17.up_proj.weight");
        let place =
            FileName { name: "blk.2.ffn_up_exps.weight".to_owned(), part: Some(TensorPart::Matrix(17)) };
        assert_eq!(experts, [place]);
        check(gguf("qwen3moe"), "layers.2.mlp.experts.x.up_proj.weight", &[]);
        let up = hf("GptOssForCausalLM").file_names("layers.2.mlp.experts.17.up_proj.bias");
        let name = "model.layers.2.mlp.experts.17.gate_up_proj.bias".to_owned();
        assert_eq!(up[0], FileName { name, part: Some(TensorPart::Alternate(1)) });
        let sinks = "layers.0.self_attn.sinks";
        check(hf("GptOssForCausalLM"), "layers.0.attn.sinks.weight", &[&format!("model.{sinks}"), sinks]);
        let expert = "layers.0.mlp.experts.3.down_proj.weight";
        check(hf("Qwen3MoeForCausalLM"), expert, &[&format!("model.{expert}"), expert]);
        let norm = "embeddings.LayerNorm";
        let spellings =
            ["weight", "gamma"].map(|leaf| [format!("{norm}.{leaf}"), format!("bert.{norm}.{leaf}")]);
        let spellings = spellings.concat();
        check(bert, "embed.norm.weight", &spellings.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn unknown_names_have_no_file_name() {
        for name in
            ["", "embed", "nonsense.weight", "layers.0.weight", "layers..weight", "layers.0.attn.z.weight"]
        {
            check(hf("LlamaForCausalLM"), name, &[]);
        }
    }

    #[test]
    fn derived_tensors_are_not_layer_weights() {
        let (llama, bert) = (hf("LlamaForCausalLM"), hf("BertModel"));
        assert!(llama.is_layer_weight("model.layers.0.self_attn.q_norm.weight"));
        assert!(!llama.is_layer_weight("model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(!llama.is_layer_weight("lm_head.weight"));
        assert!(bert.is_layer_weight("bert.encoder.layer.0.attention.self.distance_embedding.weight"));
        assert!(!bert.is_layer_weight("pooler.dense.weight"));
        let llama = gguf("llama");
        assert!(llama.is_layer_weight("blk.0.attn_q.scale"));
        assert_eq!(llama.layer_number("blk.24.attn_q.scale"), Some(24));
        assert_eq!(llama.layer_number("rope_freqs.weight"), None);
        assert!(!llama.is_layer_weight("rope_freqs.weight"));
    }
}
