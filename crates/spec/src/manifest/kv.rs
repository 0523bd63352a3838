//! How keys and values lie in a cache.

use serde::{Deserialize, Serialize};

use crate::DType;

/// One layer's part of the KV cache: two tensors `[slots, heads, capacity, head_size]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvLayout {
    /// Key/value heads.
    pub heads: usize,
    /// Elements per head.
    pub head_size: usize,
    /// Sliding window in tokens, where the layer has one.
    pub window: Option<usize>,
    /// Element type.
    pub dtype: DType,
    /// Whether keys are stored after rotation.
    pub keys: KeyRotation,
    /// How a head's keys lie.
    #[serde(default)]
    pub order: KeyOrder,
}

impl KvLayout {
    /// Bytes of one token's key and value; the greatest number where they are more than can be counted.
    pub fn bytes_per_token(&self) -> usize {
        (2 * self.dtype.size()).saturating_mul(self.heads).saturating_mul(self.head_size)
    }
}

/// Whether cached keys have been rotated to their position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRotation {
    /// Stored after rotation.
    After,
    /// Stored before rotation.
    Before,
}

/// How the keys of one head lie in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyOrder {
    /// `[tokens, head_size]`, as values do.
    #[default]
    Rows,
    /// `[head_size, tokens]`, as attention scores want them.
    Transposed,
}
