//! Mixtures of experts.

use narthex_graph::typed::{ExpertBlocks, ExpertMixture, QuantizedExperts, Reduction, Scope, Tensor};
use narthex_spec::{
    DType,
    arch::{Activation, Experts, Routing},
};

use super::linear::linear;
use crate::{
    emit::{Emitter, StackedRows},
    error::{CompileError, Result},
    quant::Storage,
};

/// Adds a mixture of experts over rows of `width` elements, as one operator over the weights of all experts. The rows of
/// gate and up projection alternate in the file, because ONNX Runtime's CPU provider supports no other order.
///
/// The operator divides the weights of a token's experts by their sum. If the model does not, the result is multiplied by
/// that sum.
///
/// ```text
/// x ─┬───────────────────────────────────┬─ MoE(weights, or Cast(weights)), or QMoE(quants, Cast(scales), zeros) ─┐
///    └─ router ─┬─ Reshape [rows, count] ┘                                                                      Mul
///               └─ Softmax ── TopK ── ReduceSum ────────────────────────────────────────────────────────────────┘
/// ```
pub(crate) fn experts(
    e: &mut Emitter<'_>,
    scope: &Scope,
    x: Tensor,
    width: usize,
    experts: &Experts,
) -> Result<Tensor> {
    check(experts)?;
    let &Experts { count, per_token, inner, normalized, bias, clamp, .. } = experts;
    let router = scope.child("router");
    let row_logits = linear(e, &router, x, width, bias.into())?;
    let routes = match experts.routing {
        Routing::Softmax => Routes { logits: row_logits, sigmoids: None },
        Routing::Sigmoid | Routing::BiasedSigmoid => sigmoid_routes(e, scope, row_logits, experts)?,
    };
    let logits = e.graph.reshape(&router, routes.logits, &[-1, count as i64])?;
    let projections = Projections::new(scope, experts, width);
    let biases = if bias { Some([projections.gate_up.bias(e)?, projections.down.bias(e)?]) } else { None };
    let mixture = ExpertMixture { x, logits, count, per_token, inner, biases, clamp };
    let mixed = mixed(e, scope, &mixture, &projections)?;
    if normalized {
        return Ok(mixed);
    }

    let scope = scope.child("shares");
    let shares = match routes.sigmoids {
        Some(shares) => shares,
        None => {
            let shares = e.graph.softmax(&scope, row_logits)?;
            e.graph.largest(&scope, shares, per_token)?
        }
    };
    let sum = e.graph.reduce(&scope, Reduction::Sum, shares, -1)?;
    Ok(e.graph.mul(&scope, mixed, sum)?)
}

/// Inputs of the operator for the experts of each row.
struct Routes {
    /// Logits whose softmax gives the weights, `[.., count]`.
    logits: Tensor,
    /// Sigmoids of the selected experts, and 0 for the others, if they are the weights.
    sigmoids: Option<Tensor>,
}

/// Factor that makes every difference of two scores, however small, larger than 1.
const MAGNIFIED: f64 = 1e30;

/// Logit of an expert that is not selected.
const EXCLUDED: f64 = 1e9;

/// Returns the routes of experts whose weights are sigmoids. The softmax of logarithms of the weights is the weights divided by
/// their sum, if the logits of all experts that are not selected are far below them.
///
/// ```text
/// logits ─┬─ Sigmoid ── Add(bias) ─┬─ TopK ── last ─┐
///         │                        └────────────── Sub ── Mul ── Clip(-1, 0) ── Mul(excluded) ─┐
///         └─ Softplus ── Sub ───────────────────────────────────────────────────────────────── Add
/// ```
fn sigmoid_routes(e: &mut Emitter<'_>, scope: &Scope, logits: Tensor, experts: &Experts) -> Result<Routes> {
    let selection = scope.child("selection");
    let sigmoids = e.graph.sigmoid(&selection, logits)?;
    let mut scores = sigmoids;
    if experts.routing == Routing::BiasedSigmoid {
        let bias = e.vector(&selection.parameter("weight"), experts.count)?;
        scores = e.graph.add(&selection.child("bias"), scores, bias)?;
    }
    let largest = e.graph.largest(&selection, scores, experts.per_token)?;
    let least = match experts.per_token {
        1 => largest,
        count => e.graph.slice_from(&selection.child("least"), largest, 2, count - 1)?,
    };
    let below = e.graph.sub(&selection.child("below"), scores, least)?;
    let magnified = e.scale(&selection.child("magnified"), below, MAGNIFIED)?;
    let [minus_one, zero] = [-1.0, 0.0].map(|bound| e.number(bound));
    // 0 for selected experts, -1 for the others.
    let marks = e.graph.clip(&selection, magnified, minus_one, zero)?;

    let weights = scope.child("weights");
    let softplus = e.graph.softplus(&weights, logits)?;
    let logarithms = e.graph.sub(&weights, logits, softplus)?;
    let excluded = e.scale(&weights.child("excluded"), marks, EXCLUDED)?;
    let logits = e.graph.add(&weights, logarithms, excluded)?;
    if experts.normalized {
        return Ok(Routes { logits, sigmoids: None });
    }
    let left_out = e.graph.mul(&weights.child("left_out"), sigmoids, marks)?;
    let sigmoids = e.graph.add(&weights.child("selected"), sigmoids, left_out)?;
    Ok(Routes { logits, sigmoids: Some(sigmoids) })
}

/// Adds the operator of a mixture.
fn mixed(
    e: &mut Emitter<'_>,
    scope: &Scope,
    mixture: &ExpertMixture,
    projections: &Projections,
) -> Result<Tensor> {
    let scope = scope.child("experts");
    let Projections { gate_up, down } = projections;
    let storage = down.names.first().and_then(|name| e.plan.storage(name)).unwrap_or(Storage::F32);
    if let Some(dtype) = storage.plain() {
        let weights = [gate_up.plain(e, dtype)?, down.plain(e, dtype)?];
        return Ok(e.graph.expert_mixture(&scope, mixture, weights)?);
    }
    let [.., cols] = down.shape;
    let weights = QuantizedExperts {
        gate_up: gate_up.blocks(e, storage)?,
        down: down.blocks(e, storage)?,
        bits: storage.bits(),
        block: e.recipe.block.operator_block(cols),
        accuracy_level: i64::from(e.recipe.accuracy_level),
    };
    Ok(e.graph.quantized_expert_mixture(&scope, mixture, &weights)?)
}

/// Fails for activations that the operator does not have.
fn check(experts: &Experts) -> Result<()> {
    if experts.activation != Activation::Silu {
        return Err(CompileError::Unsupported {
            what: format!("experts with the activation {:?}", experts.activation),
            reason: "ONNX Runtime has experts with SiLU on the CPU; take a model with hidden_act silu"
                .to_owned(),
        });
    }
    Ok(())
}

/// Weights of all experts.
struct Projections {
    gate_up: ExpertProjection,
    down: ExpertProjection,
}

/// Weights of all experts in one projection, `[count, rows, cols]`.
struct ExpertProjection {
    /// Path of the tensors.
    scope: Scope,
    /// Names of the weights, in the order of the experts.
    names: Vec<String>,
    shape: [usize; 3],
    /// Number of successive weights whose rows alternate.
    alternating: usize,
}

impl Projections {
    fn new(scope: &Scope, experts: &Experts, width: usize) -> Self {
        let &Experts { count, inner, .. } = experts;
        let scope = scope.child("experts");
        let projection = |name: &str, parts: &[&str], shape| ExpertProjection {
            scope: scope.child(name),
            names: (0..count)
                .flat_map(|expert| parts.iter().map(move |part| (expert, part)))
                .map(|(expert, part)| scope.child(expert).child(part).parameter("weight"))
                .collect(),
            shape,
            alternating: parts.len(),
        };
        Self {
            gate_up: projection("gate_up_proj", &["gate_proj", "up_proj"], [count, 2 * inner, width]),
            down: projection("down_proj", &["down_proj"], [count, width, inner]),
        }
    }
}

impl ExpertProjection {
    fn rows(&self) -> StackedRows<'_> {
        let [.., cols] = self.shape;
        StackedRows { names: &self.names, cols, alternating: self.alternating }
    }

    /// Declares the weights as floats.
    fn plain(&self, e: &mut Emitter<'_>, dtype: DType) -> Result<Tensor> {
        let scope = self.scope.child("weight");
        e.stored(&scope, dtype, &self.shape, |e: &mut Emitter<'_>| e.stacked(self.rows(), dtype))
    }

    /// Declares the biases, `[count, rows]`, in the order of the rows.
    fn bias(&self, e: &mut Emitter<'_>) -> Result<Tensor> {
        let [count, rows, _] = self.shape;
        let name = self.scope.parameter("bias");
        e.tensor(&name, &[count, rows], |e| {
            let mut values = Vec::with_capacity(count * rows);
            for names in self.names.chunks(self.alternating) {
                let mut parts = Vec::with_capacity(names.len());
                for name in names {
                    let bias = name.replace(".weight", ".bias");
                    parts.push(e.values(&bias, &[rows / self.alternating])?);
                }
                let row = |row: usize| parts.iter().map(move |part: &Vec<f32>| part[row]);
                values.extend((0..rows / self.alternating).flat_map(row));
            }
            Ok(values)
        })
    }

    /// Declares the weights as blocks of integers.
    fn blocks(&self, e: &mut Emitter<'_>, storage: Storage) -> Result<ExpertBlocks> {
        let weight = e.quantize_stacked(self.rows(), storage)?;
        let [count, rows, cols] = self.shape;
        let bits = storage.bits();
        let blocks = cols.div_ceil(e.recipe.block.operator_block(cols));
        let scope = &self.scope;
        let quants =
            e.external(&scope.node("quants"), DType::U8, &[count, rows, cols * bits / 8], weight.quants);
        let scales = e.external(&scope.node("scales"), DType::F16, &[count, rows, blocks], weight.scales);
        let zeros_shape = [count, rows, (blocks * bits).div_ceil(8)];
        let zeros =
            weight.zeros.map(|range| e.external(&scope.node("zeros"), DType::U8, &zeros_shape, range));
        // ONNX Runtime folds the cast when it loads the graph.
        let scales = e.graph.cast(&scope.child("scales"), scales, DType::F32)?;
        Ok(ExpertBlocks { quants, scales, zeros })
    }
}
