//! Number formats of a package's weights, and of the activations on NPUs.

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
    /// All weights in half precision. The dynamic variant computes with them in single precision.
    F16,
    /// Linear layers with 8 bits and one scale per output channel. In the static variant, they compute with activations
    /// of 16 bits.
    W8A16,
    /// As `W8A16` with activations of 8 bits. The head, and layers that lose much in 8 bits, have activations of 16 bits.
    W8A8,
    /// As `W4`. In the static variant, linear layers compute with activations of 16 bits.
    W4A16,
}

/// Width of the integers that represent activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ActivationBits {
    /// Unsigned integers of 8 bits.
    #[serde(rename = "u8")]
    Eight,
    /// Unsigned integers of 16 bits.
    #[serde(rename = "u16")]
    Sixteen,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 7] =
        [Self::W8, Self::W4, Self::F16, Self::F32, Self::W8A16, Self::W8A8, Self::W4A16];

    /// Schemes whose activations are floats in both variants.
    pub const OF_WEIGHTS: [Self; 4] = [Self::W8, Self::W4, Self::F16, Self::F32];

    /// Returns the scheme of the weights alone.
    pub fn of_weights(self) -> Self {
        match self {
            Self::W8A16 | Self::W8A8 => Self::W8,
            Self::W4A16 => Self::W4,
            Self::F32 | Self::W8 | Self::W4 | Self::F16 => self,
        }
    }

    /// Returns the bits of activations in the static variant; `None` for floats.
    pub fn activation_bits(self) -> Option<ActivationBits> {
        match self {
            Self::W8A16 | Self::W4A16 => Some(ActivationBits::Sixteen),
            Self::W8A8 => Some(ActivationBits::Eight),
            Self::F32 | Self::W8 | Self::W4 | Self::F16 => None,
        }
    }
}

named_set!(Scheme, "scheme");
