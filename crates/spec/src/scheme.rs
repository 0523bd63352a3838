//! Number formats in which a package stores its weights.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// Weight scheme of a package.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Scheme {
    /// All weights in single precision; the reference.
    F32,
    /// Linear layers as 8-bit `MatMulNBits`, block 32.
    W8,
    /// Linear layers as 4-bit `MatMulNBits` with blocks of 32. The head and a tied embedding remain 8-bit. Layers of a 4-bit
    /// checkpoint have at least its bits.
    W4,
    /// All weights in half precision. Variant A computes with them in single precision.
    F16,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::W8, Self::W4, Self::F16, Self::F32];
}

named_set!(Scheme, "scheme");
