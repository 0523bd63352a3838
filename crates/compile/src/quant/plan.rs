//! Which storage each linear weight gets; made before anything is read, and printable.

use narthex_spec::{
    Recipe, Scheme,
    arch::{Architecture, DecoderArch, EncoderArch},
};
use serde::Serialize;

/// How a linear weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Single precision.
    F32,
    /// 8-bit blocks, symmetric around 128: the only quantised form that the host reads rows of.
    W8,
    /// 8-bit blocks with zero points.
    W8Zeros,
    /// 4-bit blocks with zero points.
    W4,
}

/// The storage of every linear weight, by canonical name, in the order in which they are written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// One entry per weight.
    pub weights: Vec<Planned>,
}

/// One weight's entry.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planned {
    /// Canonical name.
    pub name: String,
    /// Rows: outputs of the linear layer.
    pub rows: usize,
    /// Columns: inputs of the linear layer.
    pub cols: usize,
    /// How it is stored.
    pub storage: Storage,
}

impl Plan {
    /// The plan that a recipe gives for an architecture. The head keeps 8 bits in `w4`, because its errors reach the
    /// logits unattenuated; one that shares its weight with the token table has no zero points, so that the host can
    /// read its rows.
    pub fn new(architecture: &Architecture, recipe: &Recipe) -> Self {
        let inner = match recipe.scheme {
            Scheme::F32 => Storage::F32,
            Scheme::W8 => Storage::W8Zeros,
            Scheme::W4 => Storage::W4,
        };
        let mut plan = Self { weights: Vec::new() };
        match architecture {
            Architecture::Decoder(arch) => plan.decoder(arch, inner),
            Architecture::Encoder(arch) => plan.encoder(arch, inner),
        }
        plan
    }

    fn push(&mut self, name: String, rows: usize, cols: usize, storage: Storage) {
        self.weights.push(Planned { name, rows, cols, storage });
    }

    fn decoder(&mut self, arch: &DecoderArch, inner: Storage) {
        for (index, layer) in arch.layers.iter().enumerate() {
            let scope = format!("layers.{index}");
            let a = &layer.attention;
            let (q, kv) = (a.heads * a.head_size, a.kv_heads * a.head_size);
            self.push(format!("{scope}.attn.q_proj.weight"), q, arch.hidden, inner);
            self.push(format!("{scope}.attn.k_proj.weight"), kv, arch.hidden, inner);
            self.push(format!("{scope}.attn.v_proj.weight"), kv, arch.hidden, inner);
            self.push(format!("{scope}.attn.o_proj.weight"), arch.hidden, q, inner);
            if layer.mlp.gated {
                self.push(format!("{scope}.mlp.gate_proj.weight"), layer.mlp.inner, arch.hidden, inner);
            }
            self.push(format!("{scope}.mlp.up_proj.weight"), layer.mlp.inner, arch.hidden, inner);
            self.push(format!("{scope}.mlp.down_proj.weight"), arch.hidden, layer.mlp.inner, inner);
        }
        let (name, head) = match (arch.tied_head, inner) {
            (false, Storage::F32) => ("head.weight", Storage::F32),
            (false, _) => ("head.weight", Storage::W8Zeros),
            (true, Storage::F32) => ("embed.weight", Storage::F32),
            (true, _) => ("embed.weight", Storage::W8),
        };
        self.push(name.to_owned(), arch.vocab, arch.hidden, head);
    }

    fn encoder(&mut self, arch: &EncoderArch, inner: Storage) {
        for index in 0..arch.layers {
            let scope = format!("layers.{index}");
            for part in ["q", "k", "v", "o"] {
                self.push(format!("{scope}.attn.{part}_proj.weight"), arch.hidden, arch.hidden, inner);
            }
            self.push(format!("{scope}.mlp.up_proj.weight"), arch.inner, arch.hidden, inner);
            self.push(format!("{scope}.mlp.down_proj.weight"), arch.hidden, arch.inner, inner);
        }
    }

    /// The entry of one weight.
    pub fn get(&self, name: &str) -> Option<&Planned> {
        self.weights.iter().find(|planned| planned.name == name)
    }
}
