//! Names of the inputs and outputs of decoders.

use narthex_graph::Graph;

/// Boolean input of an `If` that separates the first step of a sequence from later ones.
pub(super) const BRANCH: &str = "use_cache_branch";

/// Names of a decoder's inputs and outputs; `%d` stands for the layer.
#[derive(Debug, Clone)]
pub(super) struct TensorNames {
    pub(super) tokens: String,
    pub(super) mask: String,
    pub(super) positions: String,
    /// Number of tokens including the new ones, minus one; onnxruntime-genai calls it the past's length.
    pub(super) last: String,
    /// Number of tokens including the new ones, under two names.
    pub(super) totals: [String; 2],
    /// Keys and values of the past.
    pub(super) past: [String; 2],
    /// Keys and values including the new tokens.
    pub(super) present: [String; 2],
    pub(super) logits: String,
}

impl Default for TensorNames {
    /// Returns the names that Optimum uses.
    fn default() -> Self {
        Self {
            tokens: "input_ids".to_owned(),
            mask: "attention_mask".to_owned(),
            positions: "position_ids".to_owned(),
            last: "past_sequence_length".to_owned(),
            totals: ["total_sequence_length", "current_sequence_length"].map(str::to_owned),
            past: ["past_key_values.%d.key", "past_key_values.%d.value"].map(str::to_owned),
            present: ["present.%d.key", "present.%d.value"].map(str::to_owned),
            logits: "logits".to_owned(),
        }
    }
}

impl TensorNames {
    /// Returns the name for a layer.
    pub(super) fn of(pattern: &str, layer: usize) -> String {
        pattern.replacen("%d", &layer.to_string(), 1)
    }

    /// Returns the name of the first layer's past keys.
    pub(super) fn past_key(&self) -> String {
        Self::of(&self.past[0], 0)
    }

    /// Returns whether the graph has a past, as a decoder does.
    pub(super) fn match_decoder(&self, graph: &Graph) -> bool {
        let past = self.past_key();
        graph.inputs.iter().any(|input| input.name == past)
    }
}
