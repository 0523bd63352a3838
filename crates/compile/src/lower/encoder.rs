//! The body of an encoder, which both variants share, and the tables that the host reads for it.
//!
//! Variant A takes residual norms as one operator each, variant B in plain ones; nothing else differs.

use narthex_spec::{
    DType,
    arch::{BottleneckAttention, EncoderArch, EncoderNorm, Mlp},
    manifest::{HostTable, Slot, TableRole},
};

use super::io::Io;
use crate::{
    emit::Emitter,
    error::CompileError,
    layer::{
        attention::Bidirectional,
        embed,
        linear::{Bias, Linear, linear},
        mlp, norm, plain,
    },
};

/// The additive mask that the body reads besides its rows, and in which operators it is written.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// Any number of texts of any length.
    Dynamic { mask: &'a str },
    /// One text of a fixed length.
    Fixed { mask: &'a str, length: usize },
}

/// A part's scope in the graph, and its canonical name.
type At<'a> = (&'a str, &'a str);

/// An encoder under construction.
pub(super) struct Body<'a, 'b> {
    pub(super) e: &'a mut Emitter<'b>,
    pub(super) arch: &'a EncoderArch,
    pub(super) form: Form<'a>,
}

/// Declares the inputs that embedded tokens come in by, each `[batch, sequence, width]`; gives their sum at the width of
/// the residual stream.
///
/// ```text
/// embeds                               (what a token, its position and its segment give)
/// embeds ── project ── Add(positions)  (factored)
/// ```
pub(super) fn embedded(
    e: &mut Emitter<'_>,
    io: &mut Io,
    arch: &EncoderArch,
    texts: [narthex_spec::dtype::Dim; 2],
) -> Result<String, CompileError> {
    let dtype = e.compute;
    let [batch, sequence] = texts;
    let width = |width: usize| [batch.clone(), sequence.clone(), width.into()];
    let Some(factored) = &arch.factored else {
        return Ok(io.input(e, Slot::Embeds, "embeds", dtype, &width(arch.hidden)));
    };
    let tokens = io.input(e, Slot::Embeds, "embeds", dtype, &width(factored.input()));
    let positions = io.input(e, Slot::PositionEmbeds, "positions", dtype, &width(arch.hidden));
    let parts = ["embed.project".to_owned()];
    let project = Linear { scope: "/embed/project", parts: &parts, cols: factored.input(), bias: Bias::With };
    let tokens = linear(e, &tokens, &project)?;
    Ok(e.graph.op("/embed", "Add", &[&tokens, &positions]))
}

impl Body<'_, '_> {
    /// The layers over embedded tokens.
    ///
    /// ```text
    /// embedded ── norm ── layer × layers
    /// ```
    pub(super) fn rows(&mut self, embedded: &str) -> Result<String, CompileError> {
        let mut x = self.norm(embedded, ("/embed/norm", "embed.norm"), self.arch.hidden)?;
        for index in 0..self.arch.layers {
            x = self.layer(&x, (&format!("/layers.{index}"), &format!("layers.{index}")))?;
        }
        Ok(x)
    }

    /// ```text
    /// x ── attention ── Add ── norm ── mlp ── Add ── norm
    /// ```
    /// With a bottleneck, between two linear layers:
    /// ```text
    /// x ── input ── attention ── Add ── norm ── (mlp ── Add ── norm) × parts ── output ── Add(x) ── norm
    /// ```
    fn layer(&mut self, x: &str, (scope, weights): At<'_>) -> Result<String, CompileError> {
        let at = |part: &str| (format!("{scope}/{}", part.replace('.', "/")), format!("{weights}.{part}"));
        let (hidden, inside) = (self.arch.hidden, self.arch.inside());
        let narrow = match self.arch.bottleneck {
            Some(_) => self.bottleneck(x, &at("bottleneck.input"))?,
            None => x.to_owned(),
        };
        let shared = match self.arch.bottleneck.map(|bottleneck| bottleneck.attention) {
            None | Some(BottleneckAttention::Narrow) => [narrow.clone(), narrow.clone()],
            Some(BottleneckAttention::Shared) => [self.bottleneck(x, &at("bottleneck.attn"))?, x.to_owned()],
            Some(BottleneckAttention::Wide) => [x.to_owned(), x.to_owned()],
        };
        let place = at("attn");
        let attended = self.attention(&shared, (&place.0, &place.1))?;
        let mut y = self.add_norm((&narrow, &attended), &place.0, &at("attn_norm"), inside)?;
        let parts = (0..self.arch.early_feed_forwards())
            .map(|part| (format!("ffn.{part}"), format!("ffn.{part}.norm")))
            .chain([("mlp".to_owned(), "mlp_norm".to_owned())]);
        for (part, behind) in parts {
            let place = at(&part);
            let inner = Mlp {
                inner: self.arch.inner,
                activation: self.arch.activation,
                gated: false,
                bias: true,
                cutoff: None,
            };
            let fed = mlp::mlp(self.e, &y, (&place.0, &place.1), inside, &inner)?;
            y = self.add_norm((&y, &fed), &place.0, &at(&behind), inside)?;
        }
        if self.arch.bottleneck.is_none() {
            return Ok(y);
        }
        let place = at("bottleneck.output");
        let wide = self.linear(&y, (&place.0, &place.1), inside)?;
        let sum = format!("{}/residual", place.0);
        self.add_norm((x, &wide), &sum, &at("bottleneck.output_norm"), hidden)
    }

    fn linear(&mut self, x: &str, (scope, weights): At<'_>, cols: usize) -> Result<String, CompileError> {
        linear(self.e, x, &Linear { scope, parts: &[weights.to_owned()], cols, bias: Bias::With })
    }

    /// A linear layer to the width inside, and a norm.
    fn bottleneck(&mut self, x: &str, (scope, weights): &(String, String)) -> Result<String, CompileError> {
        let narrow = self.linear(x, (scope, weights), self.arch.hidden)?;
        let at = (format!("{scope}_norm"), format!("{weights}_norm"));
        self.norm(&narrow, (&at.0, &at.1), self.arch.inside())
    }

    fn attention(&mut self, [keys, values]: &[String; 2], at: At<'_>) -> Result<String, CompileError> {
        let reads = self.arch.attention_reads();
        let attention = Bidirectional {
            keys: (keys, reads[0]),
            values: (values, reads[1]),
            width: self.arch.inside(),
            heads: self.arch.heads,
        };
        let (texts, mask) = match self.form {
            Form::Dynamic { mask } => ([0, 0], mask),
            Form::Fixed { mask, length } => ([1, length], mask),
        };
        plain::bidirectional(self.e, &attention, at, (texts, mask))
    }

    fn norm(&mut self, x: &str, at: At<'_>, width: usize) -> Result<String, CompileError> {
        match self.arch.norm {
            EncoderNorm::Layer => norm::layer_norm(self.e, x, at, width, self.arch.norm_epsilon),
            EncoderNorm::Affine => norm::affine(self.e, x, at, width),
        }
    }

    /// The norm of a sum; `sum` is the scope of the addition where it is a node of its own.
    fn add_norm(
        &mut self,
        (residual, branch): (&str, &str),
        sum: &str,
        (scope, weights): &(String, String),
        width: usize,
    ) -> Result<String, CompileError> {
        if matches!((self.form, self.arch.norm), (Form::Dynamic { .. }, EncoderNorm::Layer)) {
            let parts = (residual, branch);
            return norm::skip_layer_norm(self.e, parts, (scope, weights), width, self.arch.norm_epsilon);
        }
        let sum = self.e.graph.op(sum, "Add", &[residual, branch]);
        self.norm(&sum, (scope, weights), width)
    }
}

/// The tables of positions and segments, and of tokens unless a head has written it.
pub(super) fn tables(
    e: &mut Emitter<'_>,
    arch: &EncoderArch,
    tokens: Option<HostTable>,
) -> Result<Vec<HostTable>, CompileError> {
    let tokens = match tokens {
        Some(tokens) => tokens,
        None => {
            let dtype = embed::table_dtype(e.recipe.scheme);
            let shape = (arch.vocab, arch.token_width());
            embed::table(e, (TableRole::Token, "embed.word.weight"), shape, dtype)?
        }
    };
    let (hidden, first) = (arch.hidden, arch.first_position);
    let positions = (TableRole::Position, "embed.position.weight");
    let mut tables =
        vec![tokens, embed::table_from(e, positions, (first, arch.positions, hidden), DType::F32)?];
    if arch.types > 0 {
        let types = (TableRole::TokenType, "embed.type.weight");
        tables.push(embed::table(e, types, (arch.types, hidden), DType::F32)?);
    }
    Ok(tables)
}
