//! A checkpoint in the form of AMD Quark's Hugging Face export: linear weights as 4-bit integers with a scale and a
//! zero point for each group of a row, everything else in half precision.
//!
//! Ryzen AI's `model_generate` requires this form; it is the only tool that produces models for AMD's NPUs.
//! onnxruntime-genai's model builder, the first step of that tool, and Quark itself read it too. Weights are rounded as
//! in `w4`, without the channel scaling that Quark adds with AWQ.
//!
//! At most one weight is in memory at a time, and only its integers are kept for the whole weight.

use std::{
    fs::File,
    io::{BufWriter, Write},
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use half::f16;
use narthex_checkpoint::{
    self as checkpoint, Checkpoint, Weight, WeightSource,
    export::{FileTensor, HfExport},
    hf,
    packed::PLACES,
};
use narthex_spec::{
    ProgressSink,
    arch::Architecture,
    progress::{Stage, Unit},
};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    PartialFolder,
    config::{self, TokenizerSettings},
};
use crate::{
    error::{CompileError, Result, unwritable},
    import::refused,
    package::{TEMPLATE_FILE, TOKENIZER_FILE},
    quant::block::{Form4, QuantRow},
};

/// Numbers of columns that can share a scale and a zero point, the usual number first.
pub const GROUPS: [usize; 3] = [128, 64, 32];

/// Number of rows that are rounded at a time.
const BATCH: usize = 512;

/// A checkpoint to export, and its destination.
#[derive(Debug, Clone, Copy)]
pub struct QuarkJob<'a> {
    /// File or folder of the checkpoint.
    pub checkpoint: &'a Path,
    /// Name of the model in messages.
    pub name: &'a str,
    /// Number of columns that share a scale and a zero point: one of [`GROUPS`].
    pub group: usize,
    /// Destination folder; it must be missing or empty.
    pub out: &'a Path,
}

/// Writes a checkpoint as a folder of AMD Quark. After a failure there is no partial folder.
///
/// # Errors
/// [`CompileError::Foreign`] for encoders, and for weights whose rows are not a whole number of groups;
/// [`CompileError::Checkpoint`] for files that cannot be read, and for families that AMD's tools do not support;
/// [`CompileError::Write`], [`CompileError::Cancelled`].
pub fn quark(job: &QuarkJob<'_>, progress: &dyn ProgressSink, cancel: &AtomicBool) -> Result<()> {
    let checkpoint = checkpoint::open(job.checkpoint)?;
    let Architecture::Decoder(arch) = &checkpoint.architecture else {
        return Err(refused(format!("export of {}", job.name), "a chat model", "an encoder"));
    };

    let written = HfExport::new(arch)?;
    let tensors: Vec<Tensor> = written.tensors().into_iter().map(Tensor::new).collect();
    whole_groups(job, &tensors)?;

    let places = places(&tensors, job.group);
    let total = places.last().map_or(0, |place| place.end) as u64;
    let partial = PartialFolder::beside(job.out, total)?;
    for (name, bytes) in files(job, &checkpoint, written.keys.clone())? {
        partial.write(name, &bytes)?;
    }

    let path = partial.0.join("model.safetensors");
    let stage = Stage::start(progress, format!("Exporting {}", job.name), Unit::Bytes, Some(total));
    let file = File::create(&path).map_err(unwritable(&path))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&header(&places)).map_err(unwritable(&path))?;

    let source = QuarkWeights { weights: checkpoint.weights.as_ref(), written: &written, cancel };
    let mut done = 0;
    for tensor in &tensors {
        for bytes in source.encode(tensor, job.group)? {
            file.write_all(&bytes).map_err(unwritable(&path))?;
            done += bytes.len() as u64;
        }
        stage.advance(done);
    }

    file.flush().and_then(|()| file.get_ref().sync_all()).map_err(unwritable(&path))?;
    checkpoint.watches.check()?;
    drop(stage);
    partial.commit(job.out)
}

/// A tensor in the checkpoint's own format, and the form in which it is stored.
struct Tensor {
    of: FileTensor,
    /// `[out, in]` of a linear weight, which is packed; `None` for tensors that are stored unpacked.
    packed: Option<[usize; 2]>,
    shape: Vec<usize>,
}

impl Tensor {
    fn new(of: FileTensor) -> Self {
        let mut shape = of.parts.first().map(|(_, shape)| shape.clone()).unwrap_or_default();
        let rows = of.parts.iter().filter_map(|(_, shape)| shape.first()).sum();
        shape.iter_mut().take(1).for_each(|first| *first = rows);
        let packed = <[usize; 2]>::try_from(&shape[..]).ok().filter(|_| of.is_linear);
        Self { of, packed, shape }
    }
}

/// A stored tensor: its name, type and shape, and the offset of its end in the data.
struct StoredTensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    end: usize,
}

/// Returns the stored tensors in order. A linear weight `[out, in]` becomes three: the integers `[in, out / 8]`, eight
/// rows in a word, the scales `[in / group, out]`, and the zero points `[in / group, out / 8]`.
fn places(tensors: &[Tensor], group: usize) -> Vec<StoredTensor> {
    let mut places = Vec::new();
    let mut end = 0;
    for Tensor { of, packed, shape } in tensors {
        let stored = match packed {
            Some([rows, cols]) => {
                let words = rows.div_ceil(8);
                let groups = cols / group;
                vec![
                    (of.name.clone(), "I32", vec![*cols, words]),
                    (format!("{}_scale", of.name), "F16", vec![groups, *rows]),
                    (format!("{}_zero_point", of.name), "I32", vec![groups, words]),
                ]
            }
            None => vec![(of.name.clone(), "F16", shape.clone())],
        };
        for (name, dtype, shape) in stored {
            end += shape.iter().product::<usize>() * if dtype == "I32" { 4 } else { 2 };
            places.push(StoredTensor { name, dtype, shape, end });
        }
    }
    places
}

/// Returns the beginning of the safetensors file, padded to a multiple of eight bytes.
fn header(places: &[StoredTensor]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut start = 0;
    for StoredTensor { name, dtype, shape, end } in places {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
        start = *end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [(text.len() as u64).to_le_bytes().to_vec(), text].concat()
}

/// Refuses weights whose last group of a row would be incomplete, which Quark's format cannot represent, and fused
/// weights whose parts share a word.
fn whole_groups(job: &QuarkJob<'_>, tensors: &[Tensor]) -> Result<()> {
    let packed: Vec<(&str, usize)> =
        tensors.iter().filter_map(|tensor| Some((tensor.of.name.as_str(), tensor.packed?[1]))).collect();
    if let Some((name, cols)) = packed.iter().find(|(_, cols)| !cols.is_multiple_of(job.group)) {
        let divisor =
            GROUPS.into_iter().find(|&group| packed.iter().all(|(_, cols)| cols.is_multiple_of(group)));
        let next = match divisor {
            Some(group) => format!("; --group {group} fits, but AMD documents only 128 for its NPUs"),
            None => String::new(),
        };
        let expected = format!("a multiple of the group of {}{next}", job.group);
        return Err(refused(format!("width of {name} of {}", job.name), expected, cols));
    }

    let parts = tensors.iter().filter(|tensor| tensor.of.parts.len() > 1).flat_map(|tensor| &tensor.of.parts);
    match parts.filter_map(|(name, shape)| Some((name, shape.first()?))).find(|(_, rows)| *rows % 8 != 0) {
        Some((name, rows)) => Err(refused(
            format!("rows of {name} of {}", job.name),
            "a multiple of 8, because 8 rows share a word",
            rows,
        )),
        None => Ok(()),
    }
}

/// The weights to encode, with their export settings.
struct QuarkWeights<'a> {
    weights: &'a dyn WeightSource,
    written: &'a HfExport,
    cancel: &'a AtomicBool,
}

impl QuarkWeights<'_> {
    /// Returns the bytes of a tensor's stored tensors, in the order of [`places`].
    fn encode(&self, tensor: &Tensor, group: usize) -> Result<Vec<Vec<u8>>> {
        match tensor.packed {
            Some(shape) => self.packed(&tensor.of, shape, group),
            None => Ok(vec![self.halves(&tensor.of)?]),
        }
    }

    fn packed(&self, tensor: &FileTensor, [rows, cols]: [usize; 2], group: usize) -> Result<Vec<Vec<u8>>> {
        let words = rows.div_ceil(8);
        let groups = cols / group;
        let mut quants = vec![0u32; cols * words];
        let mut zeros = vec![0u32; groups * words];
        let mut scales = vec![f16::ZERO; groups * rows];
        let mut first = 0;

        for (name, _) in &tensor.parts {
            let weight = self.weights.weight(name)?;
            let order = self.written.rows(name, weight.rows_len());
            for start in (0..weight.rows_len()).step_by(BATCH) {
                if self.cancel.load(Ordering::Relaxed) {
                    return Err(CompileError::Cancelled);
                }
                let some = start..(start + BATCH).min(weight.rows_len());
                let batch = self.rounded(&weight, some, order.as_deref(), group)?;
                pack(&mut quants, words, first, |row| batch.get(row).map(|row| &row.quants[..]));
                pack(&mut zeros, words, first, |row| batch.get(row).map(|row| &row.zeros[..]));
                scales.par_chunks_mut(rows).enumerate().for_each(|(group, line)| {
                    let found = batch.iter().filter_map(|row| row.scales.get(group));
                    line.iter_mut().skip(first).zip(found).for_each(|(out, scale)| *out = *scale);
                });
                first += batch.len();
            }
        }
        Ok(vec![bytes(&quants), bytes(&scales), bytes(&zeros)])
    }

    /// Returns some rows of a weight, rounded, in the order of `order`.
    fn rounded(
        &self,
        weight: &Weight<'_>,
        rows: Range<usize>,
        order: Option<&[u32]>,
        group: usize,
    ) -> Result<Vec<QuantRow>> {
        rows.into_par_iter()
            .map(|row| {
                let mut values = vec![0.0; weight.cols()];
                let from = order.and_then(|order| order.get(row)).map_or(row, |&from| from as usize);
                weight.read_row(from, &mut values);
                self.weights.check_finite(&weight.name, &values)?;
                Ok(Form4::Zeros.quantize(&values, group))
            })
            .collect()
    }

    /// Returns every element in half precision.
    fn halves(&self, tensor: &FileTensor) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (name, _) in &tensor.parts {
            let weight = self.weights.weight(name)?;
            let offset = self.written.offset(name);
            let mut row = vec![0.0; weight.cols()];
            for index in 0..weight.rows_len() {
                weight.read_row(index, &mut row);
                let halves: Vec<f16> = row.iter().map(|x| f16::from_f32(x - offset)).collect();
                if let Some((x, _)) = row.iter().zip(&halves).find(|(_, half)| !half.is_finite()) {
                    let expected = "numbers of half precision, at most 65504";
                    return Err(refused(format!("an element of {name}"), expected, x));
                }
                out.extend(bytes(&halves));
            }
        }
        Ok(out)
    }
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Packs the nibbles of some rows, starting at row `first`, into lines of `words` words: line `i` gets nibble `i` of
/// each row.
fn pack<'a>(lines: &mut [u32], words: usize, first: usize, row: impl Fn(usize) -> Option<&'a [u8]> + Sync) {
    lines.par_chunks_mut(words).enumerate().for_each(|(index, line)| {
        for (at, nibbles) in (0..).map_while(|at| Some((at, row(at)?))) {
            let nibble = nibbles.get(index / 2).map_or(0, |pair| pair >> (4 * (index % 2)) & 15);
            let word = (first + at) / 8;
            let place = (first + at) % 8;
            if let Some(word) = line.get_mut(word) {
                *word |= u32::from(nibble) << (4 * PLACES[place]);
            }
        }
    });
}

/// Returns every file except the weights.
fn files(
    job: &QuarkJob<'_>,
    checkpoint: &Checkpoint,
    mut settings: Map<String, Value>,
) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let special = &checkpoint.special;
    let bos = special.bos.map(Value::from);
    let eos = match &special.stop[..] {
        [] => None,
        [id] => Some(json!(id)),
        ids => Some(json!(ids)),
    };
    let pad = special.pad.or(special.stop.first().copied()).map(Value::from);
    let ids: Map<String, Value> = [("bos_token_id", bos), ("eos_token_id", eos), ("pad_token_id", pad)]
        .into_iter()
        .filter_map(|(key, id)| Some((key.to_owned(), id?)))
        .collect();

    settings.extend(ids.clone());
    settings.insert("torch_dtype".to_owned(), "float16".into());
    settings.insert("quantization_config".to_owned(), quantization(job.group));
    // A tokenizer that cannot be read is refused now.
    checkpoint.tokenizer.tokenizer()?;
    let template = checkpoint.chat_template.clone();
    let said = TokenizerSettings {
        bos: special.bos,
        longest: checkpoint.max_length,
        special: &special.texts,
        template: template.as_deref(),
    };

    let mut files = vec![
        (hf::CONFIG, config::pretty(&Value::Object(settings))),
        ("generation_config.json", config::pretty(&Value::Object(ids))),
        (TOKENIZER_FILE, checkpoint.tokenizer.package_json()?),
        ("tokenizer_config.json", config::pretty(&said.tokenizer_config())),
    ];

    files.extend(template.map(|template| (TEMPLATE_FILE, template.into_bytes())));
    Ok(files)
}

/// Returns `quantization_config` as in Quark 0.13 for its scheme `w_uint4_per_group_asym`, including the head.
fn quantization(group: usize) -> Value {
    let weight = json!({
        "dtype": "uint4",
        "qscheme": "per_group",
        "group_size": group,
        "ch_axis": -1,
        "symmetric": false,
        "zero_point_type": "int32",
        "scale_type": "float",
        "round_method": "half_even",
        "observer_cls": "PerGroupMinMaxObserver",
        "is_dynamic": false,
    });

    json!({
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "version": "0.13",
        "global_quant_config":
            {"weight": weight, "bias": null, "input_tensors": null, "output_tensors": null, "target_device": null},
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "kv_cache_quant_config": {},
        "algo_config": null,
        "softmax_quant_spec": null,
        "exclude": [],
        "export": {
            "kv_cache_group": [],
            "min_kv_scale": 0.0,
            "pack_method": "reorder",
            "weight_format": "real_quantized",
            "weight_merge_groups": null,
        },
    })
}
