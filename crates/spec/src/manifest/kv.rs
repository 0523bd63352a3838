//! Layout of the KV cache.

use serde::{Deserialize, Serialize};

use crate::DType;

/// One layer's part of the KV cache: two tensors `[slots, heads, capacity, head_size]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvLayout {
    /// Key/value heads.
    pub heads: usize,
    /// Elements per head.
    pub head_size: usize,
    /// Sliding window in tokens.
    pub window: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Rotation of stored keys.
    pub keys: KeyRotation,
    /// Layout of a head's keys.
    #[serde(default)]
    pub order: KeyOrder,
}

impl KvLayout {
    /// Bytes of one token's key and value, saturating.
    pub fn bytes_per_token(&self) -> usize {
        (2 * self.dtype.size()).saturating_mul(self.heads).saturating_mul(self.head_size)
    }
}

/// Rotation of cached keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRotation {
    /// Stored after rotation.
    After,
    /// Stored before rotation.
    Before,
}

/// Layout of one head's keys in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// `[tokens, head_size]`, as for values.
    #[default]
    Rows,
    /// `[head_size, tokens]`, as attention scores need them.
    Transposed,
}
