//! Layout of the KV cache.

use serde::{Deserialize, Serialize};

use crate::DType;

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

    /// Returns the layout with this element type for keys and values. Rows of convolutions keep their type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        match self.content {
            KvContent::KeysAndValues => Self { dtype, ..self.clone() },
            KvContent::ConvolutionInputs => self.clone(),
        }
    }

    /// Number of bytes of the scale of a row of integers.
    pub const SCALE_BYTES: usize = size_of::<f32>();

    /// Returns the number of elements of a row: one key or value of one head with its scale, saturating.
    pub fn row_elements(&self) -> usize {
        let scale = if self.dtype == DType::I8 { Self::SCALE_BYTES } else { 0 };
        self.head_size.saturating_add(scale)
    }

    /// Returns the number of bytes of one token's key and value, saturating.
    pub fn bytes_per_token(&self) -> usize {
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
