//! The nouns that every other crate shares: ids, dtypes, architectures, recipes, manifests, progress events.
//!
//! Plain data with serde, nothing that reads a file or computes a tensor. Start at [`manifest::Manifest`]: it is the
//! waist between the compile half and the serve half.

pub mod arch;
pub mod dtype;
pub mod feed;
pub mod id;
pub mod layers;
pub mod manifest;
pub mod matformer;
pub mod npu;
pub mod pass;
pub mod place;
pub mod power;
pub mod progress;
pub mod provider;
pub mod recipe;
pub mod target;

pub use dtype::DType;
pub use feed::{Elements, Feed, Fetch};
pub use id::{ModelName, Sha256, SlotId, TokenId};
pub use layers::LayerList;
pub use matformer::MatFormer;
pub use npu::NpuOptions;
pub use pass::Pass;
pub use place::{Division, Parts, Place, Places, Split};
pub use power::Power;
pub use progress::{Progress, Sink as ProgressSink};
pub use provider::{DeviceName, NpuPolicy, Order};
pub use recipe::{Calibration, Recipe, Scheme};
pub use target::{Ep, Target, Variant};
