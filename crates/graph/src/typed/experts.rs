//! ONNX Runtime's operators for mixtures of experts.

use narthex_spec::{DType, arch::GateClamp, dtype::Dim};

use super::{CheckedNode, Result, Scope, Tensor, TensorType, TypedBuilder, mismatch};
use crate::graph::{Attribute, MICROSOFT};

/// Operands of a mixture of gated networks with the activation SiLU. The rows of gate and up projection alternate in one
/// weight, the gate first. The weights of a row's experts are the softmax of their logits.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMixture {
    /// Rows `[.., width]`.
    pub x: Tensor,
    /// Logits of the router, `[rows, count]`.
    pub logits: Tensor,
    /// Number of experts.
    pub count: usize,
    /// Number of experts for each row.
    pub per_token: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// Biases of both projections, `[count, 2 · inner]` in the order of the rows and `[count, width]`.
    pub biases: Option<[Tensor; 2]>,
    /// Bounds of gate and up projection.
    pub clamp: Option<GateClamp>,
}

/// Weights of all experts in one projection, in blocks of integers.
#[derive(Debug, Clone, Copy)]
pub struct ExpertBlocks {
    /// Integers, `[count, rows, columns · bits / 8]`.
    pub quants: Tensor,
    /// Scale of each block, `[count, rows, blocks]`, in the element type of the input.
    pub scales: Tensor,
    /// Zero point of each block, packed in the same way as the integers.
    pub zeros: Option<Tensor>,
}

/// Weights of experts in blocks of integers.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedExperts {
    /// Gate and up projection.
    pub gate_up: ExpertBlocks,
    /// Down projection.
    pub down: ExpertBlocks,
    /// Number of bits of an integer.
    pub bits: usize,
    /// Number of columns that share a scale.
    pub block: usize,
    /// Precision to which activations may be rounded, as for [`super::MatMulNBits`].
    pub accuracy_level: i64,
}

impl TypedBuilder {
    /// Adds a mixture of experts with the weights `[count, 2 · inner, width]` and `[count, width, inner]`, in the element
    /// type of the input.
    pub fn expert_mixture(
        &mut self,
        scope: &Scope,
        mixture: &ExpertMixture,
        [gate_up, down]: [Tensor; 2],
    ) -> Result<Tensor> {
        const OP: &str = "MoE";
        let (kind, width) = self.checked_rows(scope, OP, mixture)?;
        for (weight, shape) in [gate_up, down].into_iter().zip(mixture.shapes(width)) {
            let expected = TensorType::new(kind.dtype, &shape.map(Dim::from));
            let [found] = self.types(scope, OP, [weight])?;
            if found != expected {
                return Err(mismatch(scope, OP, expected.to_string(), &[&found]));
            }
        }
        let [gate_up_bias, down_bias] = mixture.bias_inputs();
        let mut inputs = vec![Some(mixture.x), Some(mixture.logits), Some(gate_up), gate_up_bias, Some(down)];
        inputs.extend(down_bias.map(Some));
        let attributes = mixture.attributes();
        let node = CheckedNode { scope, op: OP, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        Ok(self.add_node(&node, kind))
    }

    /// Adds a mixture of experts whose weights are blocks of integers.
    pub fn quantized_expert_mixture(
        &mut self,
        scope: &Scope,
        mixture: &ExpertMixture,
        weights: &QuantizedExperts,
    ) -> Result<Tensor> {
        const OP: &str = "QMoE";
        let (kind, width) = self.checked_rows(scope, OP, mixture)?;
        let &QuantizedExperts { gate_up, down, bits, block, accuracy_level } = weights;
        for (part, [count, rows, cols]) in [gate_up, down].into_iter().zip(mixture.shapes(width)) {
            let [quants, scales] = self.types(scope, OP, [part.quants, part.scales])?;
            let expected = [
                TensorType::new(DType::U8, &[count, rows, cols * bits / 8].map(Dim::from)),
                TensorType::new(kind.dtype, &[count, rows, cols.div_ceil(block.max(1))].map(Dim::from)),
            ];
            if [&quants, &scales] != expected.each_ref() {
                let [quants_type, scales_type] = &expected;
                let expected = format!("{quants_type} and scales {scales_type}");
                return Err(mismatch(scope, OP, expected, &[&quants, &scales]));
            }
        }

        let [gate_up_bias, down_bias] = mixture.bias_inputs();
        let mut inputs: Vec<Option<Tensor>> = [mixture.x, mixture.logits].map(Some).to_vec();
        inputs.extend([Some(gate_up.quants), Some(gate_up.scales), gate_up_bias]);
        inputs.extend([Some(down.quants), Some(down.scales)]);
        let has_zeros = gate_up.zeros.is_some() || down.zeros.is_some();
        inputs.extend((has_zeros || down_bias.is_some()).then_some(down_bias));
        if has_zeros {
            inputs.extend([None; 3]);
            inputs.extend([gate_up.zeros, down.zeros]);
        }

        let mut attributes = mixture.attributes();
        attributes.extend([
            ("expert_weight_bits", Attribute::from(bits)),
            ("block_size", block.into()),
            ("accuracy_level", accuracy_level.into()),
        ]);
        let node = CheckedNode { scope, op: OP, domain: MICROSOFT, inputs: &inputs, attributes: &attributes };
        Ok(self.add_node(&node, kind))
    }

    /// Returns the type of the rows and their width, after a check of the logits and the biases.
    fn checked_rows(
        &self,
        scope: &Scope,
        op: &'static str,
        mixture: &ExpertMixture,
    ) -> Result<(TensorType, usize)> {
        let [kind, logits] = self.types(scope, op, [mixture.x, mixture.logits])?;
        let fits = logits.shape.len() == 2
            && logits.last() == Some(&Dim::from(mixture.count))
            && logits.dtype == kind.dtype;
        match kind.last() {
            Some(&Dim::Fixed(width)) if fits => {
                for (bias, [count, rows, _]) in
                    mixture.biases.into_iter().flatten().zip(mixture.shapes(width as usize))
                {
                    let expected = TensorType::new(kind.dtype, &[count, rows].map(Dim::from));
                    let [found] = self.types(scope, op, [bias])?;
                    if found != expected {
                        return Err(mismatch(scope, op, format!("a bias {expected}"), &[&found]));
                    }
                }
                Ok((kind, width as usize))
            }
            _ => {
                let expected = format!("rows and logits [rows, {}] of one element type", mixture.count);
                Err(mismatch(scope, op, expected, &[&kind, &logits]))
            }
        }
    }
}

impl ExpertMixture {
    /// Returns the shapes of the weights for rows of this width.
    fn shapes(&self, width: usize) -> [[usize; 3]; 2] {
        [[self.count, 2 * self.inner, width], [self.count, width, self.inner]]
    }

    fn bias_inputs(&self) -> [Option<Tensor>; 2] {
        self.biases.map_or([None; 2], |biases| biases.map(Some))
    }

    fn attributes(&self) -> Vec<(&'static str, Attribute)> {
        // The operator adds the last to the up projection.
        let (slope, addend) = self.clamp.map_or((1.0, 0.0), |clamp| (clamp.slope, 1.0));
        let mut attributes = vec![
            ("k", Attribute::from(self.per_token)),
            ("activation_type", Attribute::String("swiglu".to_owned())),
            // The rows of gate and up projection alternate.
            ("swiglu_fusion", 1i64.into()),
            ("activation_alpha", slope.into()),
            ("activation_beta", addend.into()),
            ("normalize_routing_weights", 1i64.into()),
        ];
        attributes.extend(self.clamp.map(|clamp| ("swiglu_limit", clamp.limit.into())));
        attributes
    }
}
