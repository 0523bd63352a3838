//! Setting for speculative decoding, which verifies several tokens in one step.

use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// Speculative decoding of a model's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Speculation {
    /// Drafts from earlier text of a sequence are verified as long as measured times show that this saves time.
    #[default]
    Auto,
    /// Each step computes one token.
    Off,
}

impl Speculation {
    /// Every setting.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Off];
}

named_set!(Speculation, "speculation");
