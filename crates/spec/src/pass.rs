//! Graph rewrites that a recipe may request.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// A rewrite of a model's graphs that computes the same function in a form that some compilers and NPUs run better.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Pass {
    /// Projections that read the same rows, such as gate and up, become one product. Queries, keys and values are
    /// always one product.
    GroupedProjections,
    /// In graphs with fixed shapes, each attention head has its own matrix products instead of one batched product.
    SplitHeads,
    /// In graphs with fixed shapes, products with a plain weight become 1×1 convolutions.
    LinearAsConv,
}

impl Pass {
    /// Every pass, in the order in which they are applied.
    pub const ALL: [Self; 3] = [Self::GroupedProjections, Self::SplitHeads, Self::LinearAsConv];
}

named_set!(Pass, "pass");
