//! The weights of an architecture: the name, the shape and the role of each.
//!
//! Every reader of weights takes them from here: the check of a checkpoint, the quantisation plan, the division into
//! parts, smaller models and exports. A new kind of layer states its weights once.

mod decoder;
mod encoder;
mod speech;
mod towers;

use std::fmt;

use super::{Architecture, DecoderArch};

/// A weight of an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Canonical name.
    pub name: WeightName,
    /// Row-major shape. Linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// Role in the model.
    pub role: WeightRole,
}

/// Canonical name of a weight, with its place in the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightName {
    /// Part of the model.
    pub component: Component,
    /// Number of its layer; `None` outside layers.
    pub layer: Option<usize>,
    /// Name in the layer: `attn.q_proj.weight`. Outside layers, the whole name.
    pub path: String,
}

/// Part of a model with layers of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Component {
    /// A decoder, or an encoder of texts.
    #[default]
    Text,
    /// A vision tower with its connector.
    Vision,
    /// An audio tower with its connector.
    Audio,
    /// Encoder of a model that transcribes speech.
    SpeechEncoder,
    /// Decoder of a model that transcribes speech.
    SpeechDecoder,
}

/// Role of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightRole {
    /// Gain of a norm.
    Norm,
    /// Bias of a norm, of a linear layer or of a convolution.
    Bias,
    /// Other numbers: factors of channels, routers, rows of end tokens, and matrices that the compiler applies.
    Coefficients,
    /// Kernel of a convolution over positions.
    Convolution,
    /// Rows that are selected by number.
    Table(Table),
    /// Linear layer.
    Linear(Projection),
    /// Linear layer of one of several experts.
    Expert(Projection),
}

/// Meaning of the rows of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Tokens.
    Tokens,
    /// Tokens, with one row for each layer.
    PerLayer,
    /// Positions.
    Positions,
    /// Segments of a text.
    Segments,
}

/// Place of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// Queries of attention.
    Query,
    /// Keys of attention.
    Key,
    /// Values of attention.
    Value,
    /// Gate of the output of attention.
    AttentionGate,
    /// Output of attention.
    Output,
    /// Gate of a feed-forward part.
    Gate,
    /// Up projection of a feed-forward part.
    Up,
    /// Down projection of a feed-forward part.
    Down,
    /// Gates and inputs of a short convolution, stacked.
    ConvolutionInput,
    /// Output of a short convolution.
    ConvolutionOutput,
    /// Queries, keys and values of a recurrence before its convolution, stacked.
    RecurrenceInput,
    /// Decays, rates or time steps of a recurrence.
    RecurrenceRate,
    /// Gate of the output of a recurrence.
    RecurrenceGate,
    /// Output of a recurrence.
    RecurrenceOutput,
    /// Router of experts.
    Router,
    /// Another layer of a tower, a connector or a bottleneck.
    Between,
    /// A layer that combines residual streams, or one of per-layer embeddings.
    Stream,
    /// A layer after the token table.
    Embedding,
    /// A hidden layer of a head.
    HeadHidden,
    /// The last layer of a head that gives a vector or scores.
    HeadOutput,
    /// The logits of a decoder, unless they are products with the token table.
    Logits,
}

impl WeightSpec {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&extent| extent as u64).product()
    }
}

impl fmt::Display for WeightName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer {
            write!(f, "{}layers.{layer}.", self.component.prefix())?;
        }
        f.write_str(&self.path)
    }
}

impl Component {
    /// Returns the prefix of the names of weights in layers.
    fn prefix(self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Vision => "vision.",
            Self::Audio => "audio.",
            Self::SpeechEncoder => "encoder.",
            Self::SpeechDecoder => "decoder.",
        }
    }
}

impl Architecture {
    /// Returns every weight, each once.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let mut list = WeightList::default();
        match self {
            Self::Decoder(arch) => list.decoder(arch),
            Self::Encoder(arch) => list.encoder(arch),
            Self::Embedder(arch) => list.embedder(arch),
            Self::Speech(arch) => list.speech(arch),
        }
        list.weights
    }
}

impl DecoderArch {
    /// Returns every weight, each once.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let mut list = WeightList::default();
        list.decoder(self);
        list.weights
    }
}

/// The weights so far, and the place of the next ones.
#[derive(Default)]
struct WeightList {
    weights: Vec<WeightSpec>,
    component: Component,
    layer: Option<usize>,
}

/// Presence of a bias.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bias {
    Present,
    Absent,
}

impl From<bool> for Bias {
    fn from(present: bool) -> Self {
        if present { Self::Present } else { Self::Absent }
    }
}

impl WeightList {
    fn push(&mut self, path: String, shape: &[usize], role: WeightRole) {
        let name = WeightName { component: self.component, layer: self.layer, path };
        self.weights.push(WeightSpec { name, shape: shape.to_vec(), role });
    }

    /// Adds the weight of a module.
    fn weight(&mut self, module: &str, shape: &[usize], role: WeightRole) {
        self.push(format!("{module}.weight"), shape, role);
    }

    fn bias(&mut self, module: &str, width: usize) {
        self.push(format!("{module}.bias"), &[width], WeightRole::Bias);
    }

    /// Adds the gain of a norm.
    fn norm(&mut self, module: &str, width: usize) {
        self.weight(module, &[width], WeightRole::Norm);
    }

    /// Adds the gain and the bias of a norm.
    fn layer_norm(&mut self, module: &str, width: usize) {
        self.norm(module, width);
        self.bias(module, width);
    }

    fn coefficients(&mut self, module: &str, shape: &[usize]) {
        self.weight(module, shape, WeightRole::Coefficients);
    }

    fn convolution(&mut self, module: &str, shape: &[usize]) {
        self.weight(module, shape, WeightRole::Convolution);
    }

    fn table(&mut self, module: &str, shape: [usize; 2], table: Table) {
        self.weight(module, &shape, WeightRole::Table(table));
    }

    fn linear(&mut self, module: &str, [out, input]: [usize; 2], projection: Projection, bias: Bias) {
        if bias == Bias::Present {
            self.bias(module, out);
        }
        self.weight(module, &[out, input], WeightRole::Linear(projection));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::arch::{
        Activation, Attention, Connector, DecoderLayer, Experts, FeedForward, KvSource, Mlp, PatchTower,
        Residual, Routing, VisionArch,
    };

    fn decoder() -> DecoderArch {
        let mlp = Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: None };
        let attention = Attention { qkv_bias: true, ..Attention::plain(4, 2, 16) };
        let layer = DecoderLayer::dense(attention, mlp);
        DecoderArch { vocab: 300, hidden: 64, layers: vec![layer; 2], ..DecoderArch::default() }
    }

    fn names(arch: &DecoderArch) -> Vec<String> {
        arch.weights().iter().map(|weight| weight.name.to_string()).collect()
    }

    #[test]
    fn names_state_their_place() {
        let mut arch = decoder();
        arch.vision = Some(Box::new(VisionArch::Patches(PatchTower {
            side: 28,
            patch: 7,
            hidden: 32,
            layers: 1,
            heads: 4,
            inner: 8,
            activation: Activation::GeluTanh,
            norm_epsilon: 1e-6,
            connector: Connector::Pooled { pool: 2, norm_epsilon: 1e-6 },
        })));
        let weights = arch.weights();
        let check = |name: &str, component, layer, shape: &[usize], role| {
            let found = weights.iter().find(|weight| weight.name.to_string() == name);
            let found = found.unwrap_or_else(|| panic!("no {name}"));
            assert_eq!((found.name.component, found.name.layer), (component, layer), "{name}");
            assert_eq!((found.shape.as_slice(), found.role), (shape, role), "{name}");
        };
        let [text, vision] = [Component::Text, Component::Vision];
        let linear = WeightRole::Linear;
        check("embed.weight", text, None, &[300, 64], WeightRole::Table(Table::Tokens));
        check("layers.1.attn.k_proj.weight", text, Some(1), &[32, 64], linear(Projection::Key));
        check("layers.1.attn.k_proj.bias", text, Some(1), &[32], WeightRole::Bias);
        check("layers.0.mlp.down_proj.weight", text, Some(0), &[64, 96], linear(Projection::Down));
        check("norm.weight", text, None, &[64], WeightRole::Norm);
        check("head.weight", text, None, &[300, 64], linear(Projection::Logits));
        check("vision.layers.0.mlp.up_proj.weight", vision, Some(0), &[8, 32], linear(Projection::Up));
        check("connector.norm.weight", vision, None, &[32], WeightRole::Norm);
        let distinct: HashSet<String> = names(&arch).into_iter().collect();
        assert_eq!(distinct.len(), weights.len());
    }

    #[test]
    fn experts_and_their_router_are_weights_of_their_own() {
        let mut arch = decoder();
        let routing = Routing::BiasedSigmoid;
        let mut experts = Experts { routing, shared: Some(40), ..Experts::plain(3, 2, 48) };
        arch.layers[1].feed_forward = FeedForward::Experts(experts.clone());
        let weights = arch.weights();
        let of = |role: WeightRole| {
            let found = weights.iter().filter(move |weight| weight.role == role);
            found.map(|weight| (weight.name.to_string(), weight.shape.clone())).collect::<Vec<_>>()
        };
        let router = ("layers.1.mlp.router.weight".to_owned(), vec![3, 64]);
        assert_eq!(of(WeightRole::Linear(Projection::Router)), [router]);
        for (projection, name, shape) in [
            (Projection::Gate, "gate", [48, 64]),
            (Projection::Up, "up", [48, 64]),
            (Projection::Down, "down", [64, 48]),
        ] {
            let expected: Vec<_> = (0..3)
                .map(|expert| (format!("layers.1.mlp.experts.{expert}.{name}_proj.weight"), shape.to_vec()))
                .collect();
            assert_eq!(of(WeightRole::Expert(projection)), expected);
        }
        assert!(!names(&arch).contains(&"layers.1.mlp.up_proj.weight".to_owned()));
        for beside in ["selection", "shared.gate_proj", "shared.up_proj", "shared.down_proj"] {
            assert!(names(&arch).contains(&format!("layers.1.mlp.{beside}.weight")), "{beside}");
        }

        let plain = names(&arch);
        experts.bias = true;
        arch.layers[1].feed_forward = FeedForward::Experts(experts);
        let mut more = names(&arch);
        more.retain(|name| !plain.contains(name));
        assert_eq!(more.len(), 1 + 3 * 3);
        assert!(more.contains(&"layers.1.mlp.router.bias".to_owned()));
        assert!(more.contains(&"layers.1.mlp.experts.2.down_proj.bias".to_owned()));
    }

    #[test]
    fn layers_have_only_the_weights_that_they_read() {
        let mut arch = decoder();
        arch.tied_head = true;
        arch.layers[1].attention_mut().unwrap().kv = KvSource::Layer(0);
        arch.layers[1].residual = Residual::Parallel;
        arch.layers[1].mlp_mut().unwrap().gated = false;
        arch.layers[1].attention_mut().unwrap().sinks = true;
        let found = names(&arch);
        assert!(!found.contains(&"head.weight".to_owned()));
        let last: Vec<_> = found.iter().filter_map(|name| name.strip_prefix("layers.1.")).collect();
        let expected = [
            "attn_norm.weight",
            "attn.q_proj.bias",
            "attn.q_proj.weight",
            "attn.o_proj.weight",
            "attn.sinks.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
        ];
        assert_eq!(last, expected);
        // A head with a reduced vocabulary has a weight of its own.
        arch.kept_tokens = Some(30);
        let weights = arch.weights();
        let head = weights.iter().find(|weight| weight.role == WeightRole::Linear(Projection::Logits));
        assert_eq!(head.unwrap().shape, [30, 64]);
    }
}
