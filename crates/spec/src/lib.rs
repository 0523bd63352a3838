//! Data types that all other crates share: ids, dtypes, architectures, devices, recipes, manifests, progress events.
//!
//! They are plain data with serde. This crate neither reads files nor computes tensors. Start at
//! [`manifest::Manifest`], the only thing that the compile half and the serve half share, and at [`device`], the table
//! of devices.

pub mod adapter;
pub mod arch;
pub mod block_size;
pub mod budget;
pub mod context_factor;
pub mod date;
pub mod device;
pub mod device_map;
pub mod device_order;
pub mod divisor;
pub mod dtype;
pub mod feed;
pub mod id;
pub mod kv_cache;
pub mod layers;
pub mod manifest;
pub mod matformer;
pub mod media;
pub mod model_kind;
pub mod name;
pub mod npu;
pub mod pass;
pub mod placement;
pub mod power;
pub mod progress;
pub mod recipe;
pub mod scheme;
pub mod speculation;
pub mod target;
pub mod tools;
pub mod variant;

pub use block_size::BlockSize;
pub use budget::Budget;
pub use context_factor::ContextFactor;
pub use date::Date;
pub use device::{DeviceKind, DeviceName, Ep, OpenVinoDevice, ProviderLibrary};
pub use device_map::{DeviceMap, InvalidDeviceMap};
pub use device_order::{DeviceOrder, NpuPolicy};
pub use dtype::DType;
pub use feed::{Elements, Feed, Fetch};
pub use id::{ModelName, Sha256, SlotId, TokenId};
pub use kv_cache::{KvCacheDtype, KvPrecision};
pub use layers::LayerList;
pub use matformer::MatFormer;
pub use media::MediaKind;
pub use model_kind::ModelKind;
pub use name::UnknownName;
pub use npu::NpuOptions;
pub use pass::Pass;
pub use placement::{DevicePlacement, DevicePlacements, HeadSplit, PhaseSplit, PlacementChoice};
pub use power::Power;
pub use progress::{Progress, Sink as ProgressSink};
pub use recipe::{
    Calibration, HeadOrder, IntegerActivations, RangeMethod, Recipe, RoundingMethod, ScalingMethod,
};
pub use scheme::{ActivationBits, Scheme};
pub use speculation::Speculation;
pub use target::{IntelChip, QnnChip, Target};
pub use tools::{ReasoningFormat, ToolFormat};
pub use variant::Variant;
