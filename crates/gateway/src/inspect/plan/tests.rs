//! A model for tests.

use narthex_check::Verdict;
use narthex_spec::{DType, QnnChip, Scheme, Target};

use super::model_estimate::{CacheEstimate, ModelEstimate, RequiredMemory, SchemeEstimate, TargetEstimate};

/// A model of 8 GB in w8 and 4 GB in w4, whose tokens take 1 MB.
pub(super) fn estimate(longest: usize) -> ModelEstimate {
    let scheme = |scheme, bytes| SchemeEstimate {
        scheme,
        bytes,
        tower_bytes: bytes / 8,
        fixed_bytes: Some(bytes),
        targets: vec![TargetEstimate {
            target: Target::Qnn(vec![QnnChip::XElite]),
            graph_bytes: bytes,
            npu_bytes: bytes,
            limit: 5_000_000_000,
            held: vec![RequiredMemory { bytes, token_bytes: 500_000, limit: 5_000_000_000 }],
            verdict: if bytes > 5_000_000_000 {
                Verdict::Refused { reason: "too large".to_owned() }
            } else {
                Verdict::Whole
            },
            score: narthex_check::Score { total: 100.0, components: Vec::new(), factors: Vec::new() },
            highest_rate: None,
        }],
    };
    ModelEstimate {
        structure: "a model".to_owned(),
        vision: None,
        audio: None,
        parameters: 8_000_000_000,
        longest,
        schemes: vec![scheme(Scheme::W8, 8_000_000_000), scheme(Scheme::W4, 4_000_000_000)],
        cache: vec![CacheEstimate {
            layers: 1,
            window: None,
            dtype: DType::F32,
            token_bytes: 1_000_000,
            f16_token_bytes: 500_000,
            i8_token_bytes: 265_625,
        }],
        npu_token_bytes: 500_000,
        state_bytes: 0,
    }
}
