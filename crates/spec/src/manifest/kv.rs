//! Layout of the KV cache.

use serde::{Deserialize, Serialize};

use crate::{DType, arch::Recurrence};

/// Cache of one layer: what the layer remembers of each token. Keys and values are two tensors `[slots, heads, capacity, head_size]`. Keys are stored after their rotation. In a cache of [`DType::I8`], each row of
/// `head_size` integers is followed by the [`Self::SCALE_BYTES`] bytes of its scale, a number in single precision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvLayout {
    /// Number of key/value heads.
    pub heads: usize,
    /// Elements per head.
    pub head_size: usize,
    /// Sliding window in tokens.
    pub window: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Layout of the keys of one head.
    #[serde(default)]
    pub order: KeyOrder,
    /// Meaning of the elements.
    #[serde(default, skip_serializing_if = "KvContent::is_attention")]
    pub content: KvContent,
}

/// Meaning of the elements of a layer's cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvContent {
    /// Keys and values of attention.
    #[default]
    KeysAndValues,
    /// Inputs of a short convolution, a row of `2 · head_size` elements for each token. The first half of a row takes the
    /// place of a key, and the second half that of a value. A step reads the last [`KvLayout::window`] rows.
    ConvolutionInputs,
    /// State of a recurrence. It has the same size after any number of tokens, and nothing is kept for each token, so that
    /// it can only be continued, or replaced by a copy from another time. [`KvLayout::recurrent_state`] has its shape.
    RecurrentState {
        /// Elements of a key.
        key_size: usize,
        /// Number of channels of the convolution before the recurrence.
        width: usize,
    },
}

/// Shape of the state of a recurrence for one sequence, in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentStateShape {
    /// Extents of the recurrent state: heads, elements of a key and of a value. It is zero before the first token.
    pub recurrent: [usize; 3],
    /// Extents of the inputs of the convolution for the last tokens: rows and channels. Rows before the first token are
    /// zero.
    pub convolution: [usize; 2],
}

impl RecurrentStateShape {
    /// Returns the shape of the state of a recurrence.
    pub fn of(recurrence: Recurrence<'_>) -> Self {
        match recurrence {
            Recurrence::DeltaRule(rule) => Self {
                recurrent: [rule.value_heads, rule.key_size, rule.value_size],
                convolution: [rule.kernel.saturating_sub(1), rule.width()],
            },
            Recurrence::Mamba2(mamba) => Self {
                recurrent: [mamba.heads, mamba.state_size, mamba.head_size],
                convolution: [mamba.kernel.saturating_sub(1), mamba.width()],
            },
        }
    }

    /// Returns the number of bytes, saturating.
    pub fn bytes(&self) -> usize {
        let elements = |extents: &[usize]| extents.iter().copied().fold(1, usize::saturating_mul);
        let all = elements(&self.recurrent).saturating_add(elements(&self.convolution));
        all.saturating_mul(size_of::<f32>())
    }
}

impl KvContent {
    fn is_attention(&self) -> bool {
        *self == Self::KeysAndValues
    }
}

impl KvLayout {
    /// Returns the layout of a layer in `f32` without a window. Its keys are stored as rows.
    pub const fn plain(heads: usize, head_size: usize) -> Self {
        Self {
            heads,
            head_size,
            window: None,
            dtype: DType::F32,
            order: KeyOrder::Rows,
            content: KvContent::KeysAndValues,
        }
    }

    /// Returns the layout of a short convolution over rows of `width` elements, which must be even.
    pub const fn convolution(width: usize, kernel: usize, dtype: DType) -> Self {
        Self {
            window: Some(kernel.saturating_sub(1)),
            dtype,
            content: KvContent::ConvolutionInputs,
            ..Self::plain(1, width / 2)
        }
    }

    /// Returns the layout of the state of a recurrence. Its heads are those of values, and its window is the number of rows of
    /// the convolution.
    pub fn recurrence(recurrence: Recurrence<'_>) -> Self {
        let RecurrentStateShape { recurrent: [heads, key_size, value_size], convolution: [rows, width] } =
            RecurrentStateShape::of(recurrence);
        Self {
            window: Some(rows),
            content: KvContent::RecurrentState { key_size, width },
            ..Self::plain(heads, value_size)
        }
    }

    /// Returns the shape of the state of a recurrence; `None` for another content.
    pub fn recurrent_state(&self) -> Option<RecurrentStateShape> {
        let KvContent::RecurrentState { key_size, width } = self.content else { return None };
        Some(RecurrentStateShape {
            recurrent: [self.heads, key_size, self.head_size],
            convolution: [self.window.unwrap_or(0), width],
        })
    }

    /// Returns the layout with this element type for keys and values. Rows of convolutions and states keep their type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        match self.content {
            KvContent::KeysAndValues => Self { dtype, ..self.clone() },
            KvContent::ConvolutionInputs | KvContent::RecurrentState { .. } => self.clone(),
        }
    }

    /// Number of bytes of the scale of a row of integers.
    pub const SCALE_BYTES: usize = size_of::<f32>();

    /// Returns the number of elements of a row: one key or value of one head with its scale, saturating.
    pub fn row_elements(&self) -> usize {
        let scale = if self.dtype == DType::I8 { Self::SCALE_BYTES } else { 0 };
        self.head_size.saturating_add(scale)
    }

    /// Returns the number of bytes of one token's key and value, saturating. A state has none.
    pub fn bytes_per_token(&self) -> usize {
        if self.recurrent_state().is_some() {
            return 0;
        }
        (2 * self.dtype.size()).saturating_mul(self.heads).saturating_mul(self.row_elements())
    }
}

/// Layout of one head's keys in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// `[tokens, head_size]`, as for values.
    #[default]
    Rows,
    /// `[head_size, tokens]`, the right operand of the scores' product.
    Transposed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{GatedDeltaRule, KeyHeadOrder};

    #[test]
    fn a_state_has_one_size_and_its_own_element_type() {
        let rule = GatedDeltaRule {
            key_heads: 2,
            value_heads: 4,
            key_order: KeyHeadOrder::Grouped,
            key_size: 8,
            value_size: 16,
            kernel: 4,
        };
        let layout = KvLayout::recurrence(Recurrence::DeltaRule(&rule));
        let shape = RecurrentStateShape { recurrent: [4, 8, 16], convolution: [3, 96] };
        assert_eq!((layout.recurrent_state(), shape.bytes()), (Some(shape), 4 * (512 + 288)));
        assert_eq!((layout.bytes_per_token(), layout.with_dtype(DType::I8)), (0, layout.clone()));
        let written = serde_json::to_string(&layout).unwrap();
        assert!(written.contains(r#""content":{"recurrent_state":{"key_size":8,"width":96}}"#), "{written}");
        assert_eq!(serde_json::from_str::<KvLayout>(&written).unwrap(), layout);

        assert_eq!(KvLayout::plain(2, 16).recurrent_state(), None);
        let huge = RecurrentStateShape { recurrent: [usize::MAX, 2, 2], ..shape };
        assert_eq!(huge.bytes(), usize::MAX);
    }
}
