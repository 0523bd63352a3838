//! Mixtures of experts.

use narthex_graph::typed::{ExpertBlocks, ExpertMixture, QuantizedExperts, Reduction, Scope, Tensor};
use narthex_spec::{
    DType,
    arch::{Activation, Experts},
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
    let logits = e.graph.reshape(&router, row_logits, &[-1, count as i64])?;
    let projections = Projections::new(scope, experts, width);
    let biases = if bias { Some([projections.gate_up.bias(e)?, projections.down.bias(e)?]) } else { None };
    let mixture = ExpertMixture { x, logits, count, per_token, inner, biases, clamp };
    let mixed = mixed(e, scope, &mixture, &projections)?;
    if normalized {
        return Ok(mixed);
    }

    let scope = scope.child("shares");
    let shares = e.graph.softmax(&scope, row_logits)?;
    let shares = e.graph.largest(&scope, shares, per_token)?;
    let sum = e.graph.reduce(&scope, Reduction::Sum, shares, -1)?;
    Ok(e.graph.mul(&scope, mixed, sum)?)
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
