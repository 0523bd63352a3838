//! Formats of packed weights: which settings are read, and which tensors belong to a weight.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use super::mxfp4;
use crate::{
    error::{CheckpointError, Result},
    limits::{malformed, unsupported},
    stored_tensor::{PackedLayout, PackedTensor, StoredTensor, TensorEncoding},
};

/// Format of a folder's packed weights, as its `quantization_config` states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackedFormat {
    /// AMD Quark's 4-bit integers in groups with zero points.
    Quark,
    /// AutoAWQ's `gemm`.
    Awq,
    /// AutoGPTQ, GPTQModel and AutoRound.
    Gptq {
        /// Width of an integer.
        bits: u32,
        /// Difference between a zero point and its stored integer.
        zero_offset: u32,
    },
    /// compressed-tensors.
    CompressedTensors {
        /// Width of packed integers.
        bits: u32,
        /// Rows and columns that share a scale, if scales are for blocks.
        block: Option<[usize; 2]>,
    },
    /// Floats of 8 bits with scales for blocks, as DeepSeek and Qwen publish them.
    Float8 {
        /// Rows and columns of a block that shares a scale; `None` if the whole weight has one scale.
        block: Option<[usize; 2]>,
    },
    /// gpt-oss's experts: floats of 4 bits in blocks of 32.
    Mxfp4,
}

/// The formats that are read, for errors about another one.
const OTHERS: &str = "none, or integers of AutoAWQ (gemm), GPTQ, AutoRound or compressed-tensors, 4-bit integers of AMD Quark in \
                      groups, 8-bit floats, or mxfp4; take the checkpoint in f32, f16 or bf16, or a GGUF file of it";

/// Scales of activations and of a cache. Narthex does not round these as the file's program does.
const ACTIVATION_SCALES: [&str; 6] =
    [".input_scale", ".input_zero_point", ".output_scale", ".q_scale", ".k_scale", ".v_scale"];

impl PackedFormat {
    /// Reads a `quantization_config`.
    ///
    /// # Errors
    /// The error for settings that are not read.
    pub(crate) fn of(config: &Value) -> Result<Self> {
        let method = config.get("quant_method").and_then(Value::as_str).unwrap_or("some");
        match method {
            "quark" if is_quark(config) => Ok(Self::Quark),
            "awq" => Self::awq(config),
            "gptq" | "gptqmodel" => Self::gptq(config),
            "auto-round" | "auto_round" | "intel/auto-round" => Self::auto_round(config),
            "compressed-tensors" => Self::compressed_tensors(config),
            "mxfp4" => Ok(Self::Mxfp4),
            "fp8" => Ok(Self::Float8 { block: block(config.get("weight_block_size")) }),
            other => Err(unsupported("quantization_config", OTHERS, other)),
        }
    }

    fn awq(config: &Value) -> Result<Self> {
        let version = config.get("version").and_then(Value::as_str).unwrap_or("gemm");
        if !version.eq_ignore_ascii_case("gemm") {
            return Err(setting("version", "gemm", version));
        }
        bits(config, &[4])?;
        Ok(Self::Awq)
    }

    fn gptq(config: &Value) -> Result<Self> {
        let zero_offset = match text(config, "checkpoint_format").unwrap_or("gptq") {
            // The first version stores zero points minus one.
            "gptq" => 1,
            "gptq_v2" => 0,
            other => return Err(setting("checkpoint_format", "gptq or gptq_v2", other)),
        };
        Ok(Self::Gptq { bits: bits(config, &[2, 4, 8])?, zero_offset })
    }

    fn auto_round(config: &Value) -> Result<Self> {
        let format = text(config, "packing_format").unwrap_or("auto_round:auto_gptq");
        let zero_offset = match format {
            "auto_round:auto_gptq" | "auto_round:exllamav2" => 1,
            "auto_round" | "auto_round:gptqmodel" => 0,
            "auto_round:auto_awq" | "auto_round:awq" => return Self::awq(config),
            "auto_round:llm_compressor" => return Self::compressed_tensors(config),
            other => return Err(setting("packing_format", "auto_round:auto_gptq", other)),
        };
        Ok(Self::Gptq { bits: bits(config, &[2, 4, 8])?, zero_offset })
    }

    fn compressed_tensors(config: &Value) -> Result<Self> {
        const FORMATS: [&str; 4] = ["pack-quantized", "int-quantized", "naive-quantized", "float-quantized"];
        let format = text(config, "format").unwrap_or("none");
        if !FORMATS.contains(&format) {
            return Err(setting("format", &FORMATS.join(", "), format));
        }
        if let Some(sparsity) = config.pointer("/sparsity_config/format").and_then(Value::as_str)
            && sparsity != "dense"
        {
            return Err(setting("sparsity_config", "dense", sparsity));
        }
        if config
            .pointer("/transform_config/config_groups")
            .and_then(Value::as_object)
            .is_some_and(|groups| !groups.is_empty())
        {
            return Err(setting("transform_config", "none", "some"));
        }

        let groups = config.get("config_groups").and_then(Value::as_object);
        let weights: Vec<&Value> = groups
            .into_iter()
            .flatten()
            .filter_map(|(_, group)| group.get("weights").filter(|weights| weights.is_object()))
            .collect();
        let Some(first) = weights.first() else { return Err(setting("config_groups", "weights", "none")) };
        let kind = text(first, "type").unwrap_or("int");
        let bits = first.get("num_bits").and_then(Value::as_u64).unwrap_or(0) as u32;
        if !matches!((kind, bits), ("int", 2 | 4 | 8) | ("float", 8)) {
            return Err(setting(
                "weights",
                "int with 2, 4 or 8 bits, or float with 8",
                format!("{kind} with {bits} bits"),
            ));
        }
        if weights.iter().any(|other| {
            other.get("num_bits") != first.get("num_bits") || text(other, "type") != text(first, "type")
        }) {
            return Err(setting("config_groups", "one type of weights", "several"));
        }
        Ok(Self::CompressedTensors { bits, block: block(first.get("block_structure")) })
    }
}

/// Returns whether the settings are Quark's 4-bit integers in groups with zero points, for weights only.
fn is_quark(config: &Value) -> bool {
    let text = |path: &str| config.pointer(path).and_then(Value::as_str);
    let weight = "/global_quant_config/weight";
    text("/export/pack_method") == Some("reorder")
        && text(&format!("{weight}/dtype")) == Some("uint4")
        && text(&format!("{weight}/qscheme")) == Some("per_group")
        && config.pointer("/global_quant_config/input_tensors").is_none_or(Value::is_null)
}

/// Returns an error for a setting that is not read.
fn setting(name: &str, expected: &str, found: impl std::fmt::Display) -> CheckpointError {
    unsupported(format!("{name} in quantization_config"), expected.to_owned(), found)
}

fn text<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    config.get(key).and_then(Value::as_str)
}

/// Returns the width of an integer, one of `read`.
fn bits(config: &Value, read: &[u32]) -> Result<u32> {
    let stated = config.get("bits").and_then(Value::as_u64).unwrap_or(4);
    read.iter().copied().find(|bits| u64::from(*bits) == stated).ok_or_else(|| {
        let names: Vec<String> = read.iter().map(ToString::to_string).collect();
        setting("bits", &names.join(", "), stated)
    })
}

/// Returns the numbers of rows and columns of a block.
fn block(value: Option<&Value>) -> Option<[usize; 2]> {
    let sizes = value?.as_array()?;
    let size = |index: usize| usize::try_from(sizes.get(index)?.as_u64()?).ok().filter(|size| *size > 0);
    Some([size(0)?, size(1)?])
}

/// Combines the tensors of each packed weight of a folder into one tensor `[out, in]`. `bytes` returns the bytes of a stored
/// tensor.
///
/// # Errors
/// [`CheckpointError::MissingTensor`] for a weight without scales, and an error for shapes that do not fit.
pub(crate) fn gather<'a>(
    folder: &Path,
    tensors: &mut HashMap<String, StoredTensor>,
    format: PackedFormat,
    bytes: impl Fn(&StoredTensor) -> &'a [u8],
) -> Result<()> {
    if format == PackedFormat::Mxfp4 {
        return mxfp4::gather(folder, tensors);
    }
    let mut modules: Vec<(String, String)> = tensors
        .iter()
        .filter_map(|(name, tensor)| Some((format.module(name, tensor, tensors)?.to_owned(), name.clone())))
        .collect();
    modules.sort_unstable();
    let names = format.part_names();

    for (module, name) in modules {
        let Some(mut weight) = tensors.remove(&name) else { continue };
        let mut part = |suffix: &str| tensors.remove(&format!("{module}.{suffix}"));
        part("weight_shape");
        let zeros = part(names.zeros);
        let groups = part(names.groups);
        let missing = if zeros.is_none() && format.has_zeros() { names.zeros } else { names.scales };
        let Some(scales) = part(names.scales).filter(|_| missing == names.scales) else {
            let name = format!("{module}.{missing}");
            return Err(CheckpointError::MissingTensor { path: folder.to_owned(), name });
        };

        let layout = format.layout(&weight);
        let shapes = PackedShapes { weight: &weight.shape, scales: &scales.shape, zeros: zeros.as_ref() };
        let Some((shape, tile)) = shapes.sizes(layout, format.block()) else {
            let expected = format!("a {name} whose groups have its scales and zero points");
            let zeros = zeros.map(|zeros| format!(", {:?}", zeros.shape)).unwrap_or_default();
            let found = format!("shapes {:?}, {:?}{zeros}", weight.shape, scales.shape);
            return Err(malformed(folder, expected, found));
        };

        let groups = match groups {
            Some(groups) => column_groups(folder, &name, groups, shape[1], tile[1], &bytes)?,
            None => None,
        };
        weight.shape = shape.to_vec();
        weight.kind =
            TensorEncoding::PackedTensor(Box::new(PackedTensor { layout, scales, zeros, groups, tile }));
        tensors.insert(format!("{module}.weight"), weight);
    }

    tensors.retain(|name, _| !ACTIVATION_SCALES.iter().any(|scale| name.ends_with(scale)));
    Ok(())
}

/// Returns the group of each column unless groups are consecutive columns, or the file ends after its header.
fn column_groups<'a>(
    folder: &Path,
    name: &str,
    groups: StoredTensor,
    cols: usize,
    group: usize,
    bytes: impl Fn(&StoredTensor) -> &'a [u8],
) -> Result<Option<StoredTensor>> {
    let words = bytes(&groups);
    if words.is_empty() {
        return Ok(None);
    }
    let indices: Vec<usize> =
        words.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as usize).collect();
    let count = cols / group;
    if groups.kind != TensorEncoding::Other("I32".to_owned())
        || indices.len() != cols
        || indices.iter().any(|index| *index >= count)
    {
        let expected = format!("a group below {count} for each of the {cols} columns of {name}");
        return Err(malformed(folder, expected, format!("{} indices", indices.len())));
    }
    let consecutive = indices.iter().enumerate().all(|(col, index)| *index == col / group);
    Ok((!consecutive).then_some(groups))
}

impl PackedFormat {
    /// Returns the module of a tensor if it has the elements of a packed weight.
    fn module<'a>(
        self,
        name: &'a str,
        tensor: &StoredTensor,
        tensors: &HashMap<String, StoredTensor>,
    ) -> Option<&'a str> {
        let is = |kind: &str| tensor.kind == TensorEncoding::Other(kind.to_owned());
        let module = match self {
            Self::Awq | Self::Gptq { .. } => return name.strip_suffix(".qweight").filter(|_| is("I32")),
            Self::Quark => name.strip_suffix(".weight").filter(|_| is("I32"))?,
            Self::CompressedTensors { .. } => match name.strip_suffix(".weight_packed") {
                Some(module) => return Some(module).filter(|_| is("I32")),
                None => name.strip_suffix(".weight").filter(|_| is("I8") || is("F8_E4M3"))?,
            },
            Self::Float8 { .. } => name.strip_suffix(".weight").filter(|_| is("F8_E4M3"))?,
            Self::Mxfp4 => return None,
        };
        let parts = ["weight_scale", "weight_scale_inv", "weight_zero_point"];
        parts.iter().any(|part| tensors.contains_key(&format!("{module}.{part}"))).then_some(module)
    }

    /// Returns the names of the tensors beside the elements of a weight.
    fn part_names(self) -> PartNames {
        match self {
            Self::Awq | Self::Gptq { .. } => PartNames { scales: "scales", zeros: "qzeros", groups: "g_idx" },
            Self::Quark | Self::CompressedTensors { .. } => {
                PartNames { scales: "weight_scale", zeros: "weight_zero_point", groups: "weight_g_idx" }
            }
            Self::Float8 { .. } | Self::Mxfp4 => {
                PartNames { scales: "weight_scale_inv", zeros: "weight_zero_point", groups: "weight_g_idx" }
            }
        }
    }

    /// Returns whether every weight has zero points.
    fn has_zeros(self) -> bool {
        matches!(self, Self::Quark | Self::Awq | Self::Gptq { .. })
    }

    /// Returns the layout of a weight.
    fn layout(self, weight: &StoredTensor) -> PackedLayout {
        match self {
            Self::Quark | Self::Awq => PackedLayout::Interleaved,
            Self::Gptq { bits, zero_offset } => PackedLayout::Columns { bits, zero_offset },
            Self::Float8 { .. } => PackedLayout::Float8,
            Self::Mxfp4 => PackedLayout::Mxfp4,
            Self::CompressedTensors { bits, .. } => match &weight.kind {
                TensorEncoding::Other(kind) if kind == "I8" => PackedLayout::Bytes,
                TensorEncoding::Other(kind) if kind == "F8_E4M3" => PackedLayout::Float8,
                _ => PackedLayout::Rows { bits },
            },
        }
    }

    fn block(self) -> Option<[usize; 2]> {
        match self {
            Self::CompressedTensors { block, .. } | Self::Float8 { block } => block,
            _ => None,
        }
    }
}

/// Names of the tensors beside the elements of a weight, after the name of its module.
struct PartNames {
    scales: &'static str,
    zeros: &'static str,
    /// Group of each column.
    groups: &'static str,
}

/// Shapes of a packed weight's tensors.
struct PackedShapes<'a> {
    weight: &'a [usize],
    scales: &'a [usize],
    zeros: Option<&'a StoredTensor>,
}

impl PackedShapes<'_> {
    /// Returns `[out, in]`, and the numbers of rows and of columns that share a scale; `None` if the shapes do not fit.
    fn sizes(&self, layout: PackedLayout, block: Option<[usize; 2]>) -> Option<([usize; 2], [usize; 2])> {
        let &[first, second] = self.weight else { return None };
        match layout {
            PackedLayout::Interleaved => {
                let &[groups, rows] = self.scales else { return None };
                let fits = second == rows.div_ceil(8) && self.has_zeros(&[groups, second], "I32");
                self.grouped([rows, first], groups).filter(|_| fits)
            }
            PackedLayout::Columns { bits, .. } => {
                let &[groups, rows] = self.scales else { return None };
                let per_word = 32 / bits as usize;
                let zeros = [groups, rows.div_ceil(per_word)];
                let fits = second == rows && self.has_zeros(&zeros, "I32");
                self.grouped([rows, first.checked_mul(per_word)?], groups).filter(|_| fits)
            }
            PackedLayout::Rows { bits } => {
                let &[rows, groups] = self.scales else { return None };
                let per_word = 32 / bits as usize;
                let zeros = [rows.div_ceil(per_word), groups];
                let fits = first == rows && self.has_zeros(&zeros, "I32");
                self.grouped([rows, second.checked_mul(per_word)?], groups).filter(|_| fits)
            }
            PackedLayout::Bytes => {
                self.tiled([first, second], block).filter(|_| self.has_zeros(self.scales, "I8"))
            }
            PackedLayout::Float8 => self.tiled([first, second], block),
            PackedLayout::Mxfp4 => None,
        }
    }

    /// Returns whether zero points, if there are any, have this shape and type.
    fn has_zeros(&self, shape: &[usize], kind: &str) -> bool {
        self.zeros
            .is_none_or(|zeros| zeros.shape == shape && zeros.kind == TensorEncoding::Other(kind.to_owned()))
    }

    /// Returns the sizes of a weight with `groups` groups of columns.
    fn grouped(&self, shape: [usize; 2], groups: usize) -> Option<([usize; 2], [usize; 2])> {
        let group = shape[1].checked_div(groups)?;
        (group > 0 && group * groups == shape[1]).then_some((shape, [1, group]))
    }

    /// Returns the sizes of a weight with one scale, one for each row or group, or one for each block.
    fn tiled(&self, shape: [usize; 2], block: Option<[usize; 2]>) -> Option<([usize; 2], [usize; 2])> {
        let count: usize = self.scales.iter().product();
        if count == 1 {
            return Some((shape, shape)).filter(|_| shape[0] > 0 && shape[1] > 0);
        }
        let scales = match *self.scales {
            [rows] => [rows, 1],
            [rows, cols] => [rows, cols],
            _ => return None,
        };
        if scales[0] == shape[0] {
            return self.grouped(shape, scales[1]);
        }
        let block = block?;
        let fits = [0, 1].into_iter().all(|axis| shape[axis].div_ceil(block[axis]) == scales[axis]);
        fits.then_some((shape, block))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read() {
        let check = |config: Value, expect: PackedFormat| {
            assert_eq!(PackedFormat::of(&config).unwrap(), expect, "{config}");
        };
        check(
            json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}),
            PackedFormat::Awq,
        );
        let gptq = |bits, zero_offset| PackedFormat::Gptq { bits, zero_offset };
        check(json!({"quant_method": "gptq", "bits": 4, "desc_act": true}), gptq(4, 1));
        check(json!({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}), gptq(8, 0));
        check(
            json!({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}),
            gptq(4, 1),
        );
        check(
            json!({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:gptqmodel"}),
            gptq(4, 0),
        );
        check(
            json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}),
            PackedFormat::Awq,
        );
        let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128});
        check(
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}),
            PackedFormat::CompressedTensors { bits: 4, block: None },
        );
        check(json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}), PackedFormat::Mxfp4);
        check(
            json!({"quant_method": "fp8", "weight_block_size": [128, 64]}),
            PackedFormat::Float8 { block: Some([128, 64]) },
        );
    }

    #[test]
    fn other_settings_are_refused_by_name() {
        let check = |config: Value, expect: &str| {
            let error = PackedFormat::of(&config).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        check(json!({"quant_method": "bitsandbytes"}), "quantization_config: found bitsandbytes");
        check(json!({"quant_method": "quark"}), "quantization_config: found quark");
        check(
            json!({"quant_method": "awq", "version": "gemv"}),
            "version in quantization_config: found gemv",
        );
        check(json!({"quant_method": "gptq", "bits": 3}), "bits in quantization_config: found 3");
        check(json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), "checkpoint_format");
        check(json!({"quant_method": "auto-round", "packing_format": "auto_round:mx_fp4"}), "packing_format");
        let compressed = |changes: Value| {
            let mut config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}});
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            config
        };
        check(compressed(json!({"format": "nvfp4-pack-quantized"})), "format in quantization_config");
        check(compressed(json!({"sparsity_config": {"format": "sparse-24-bitmask"}})), "sparsity_config");
        check(compressed(json!({"transform_config": {"config_groups": {"a": {}}}})), "transform_config");
        check(compressed(json!({"config_groups": {}})), "config_groups");
        let floats = json!({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}}});
        check(compressed(floats), "found float with 4 bits");
    }

    #[test]
    fn shapes_must_fit() {
        let check = |layout, weight: &[usize], scales: &[usize], expect: Option<([usize; 2], [usize; 2])>| {
            let shapes = PackedShapes { weight, scales, zeros: None };
            assert_eq!(shapes.sizes(layout, Some([4, 8])), expect, "{layout:?} {weight:?} {scales:?}");
        };
        let columns = PackedLayout::Columns { bits: 4, zero_offset: 1 };
        check(PackedLayout::Interleaved, &[64, 2], &[2, 16], Some(([16, 64], [1, 32])));
        check(PackedLayout::Interleaved, &[64, 3], &[2, 16], None);
        check(PackedLayout::Interleaved, &[64, 2], &[0, 16], None);
        check(columns, &[8, 16], &[2, 16], Some(([16, 64], [1, 32])));
        check(columns, &[8, 16], &[3, 16], None);
        check(columns, &[usize::MAX, 16], &[2, 16], None);
        check(PackedLayout::Rows { bits: 8 }, &[16, 16], &[16, 1], Some(([16, 64], [1, 64])));
        check(PackedLayout::Bytes, &[16, 64], &[1], Some(([16, 64], [16, 64])));
        check(PackedLayout::Float8, &[16, 64], &[16, 1], Some(([16, 64], [1, 64])));
        check(PackedLayout::Float8, &[6, 20], &[2, 3], Some(([6, 20], [4, 8])));
        check(PackedLayout::Float8, &[6, 20], &[3, 3], None);
    }
}
