//! Graph rewrites that a recipe may ask for.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// A rewrite of a model's graphs that keeps what they compute, for compilers and NPUs that run the new form better.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Pass {
    /// Projections that read the same rows, such as gate and up, become one product. Queries, keys and values always are.
    GroupedProjections,
    /// In graphs of fixed shape, each attention head becomes matrix products of its own in place of a batched product.
    SplitHeads,
    /// In graphs of fixed shape, products with a plain weight become 1×1 convolutions.
    LinearAsConv,
}

impl Pass {
    /// Every pass, in the order in which they are applied.
    pub const ALL: [Self; 3] = [Self::GroupedProjections, Self::SplitHeads, Self::LinearAsConv];
}

named_set!(Pass, "pass");
