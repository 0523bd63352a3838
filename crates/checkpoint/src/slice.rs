//! Smaller models from a checkpoint: without some of its layers, or as in Google's MatFormer Lab for Gemma 3n, which
//! also keeps only the first inner channels of feed-forward parts.
//!
//! The parameters of a layer move with it: the columns of its per-layer embeddings, and its reference to the layer
//! whose keys and values it shares. Weights stay in the file; removed rows and columns are skipped when they are read.

use std::{
    collections::HashMap,
    ops::Range,
    path::{Path, PathBuf},
};

use narthex_spec::{
    LayerList, Recipe,
    arch::{Architecture, Component, DecoderArch, DecoderLayer, Family, KvSource, WeightName},
    matformer::MatFormer,
};

use crate::{
    checkpoint::Checkpoint,
    error::{CheckpointError, Result},
    weight::{Weight, WeightSource},
};

/// Reason why a smaller model cannot be made from a checkpoint.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SliceError {
    /// The model was not trained to contain smaller ones.
    #[error("expected Gemma 3n, which contains smaller models, found {found}")]
    Family {
        /// Structure of the checkpoint.
        found: String,
    },
    /// A named size belongs to another checkpoint.
    #[error("expected the {expected} layers of Gemma 3n E4B for {name}, found {found}")]
    NotE4b {
        /// The smaller model.
        name: String,
        /// Layers of the checkpoint that contains it.
        expected: usize,
        /// Layers of this checkpoint.
        found: usize,
    },
    /// A layer to remove does not exist, or no layer would remain.
    #[error("expected layers to drop from 0 to {last}, with at least one left, found {found:?}")]
    Layers {
        /// The last layer.
        last: usize,
        /// Requested value.
        found: Vec<usize>,
    },
    /// A layer to remove has keys and values that other layers share.
    #[error("layer {layer} cannot be dropped: later layers share its keys and values; keep it")]
    Shared {
        /// The layer.
        layer: usize,
    },
    /// Layers to remove are stated in two places.
    #[error(
        "expected the dropped layers in one setting, found them in two: the MatFormer size also has a list; add them to it, as in skip=3+7"
    )]
    DroppedTwice,
    /// Numbers of layers do not state a side.
    #[error("layers of a model that transcribes speech cannot be dropped; take a smaller model")]
    Sides,
    /// The number of inner widths is wrong.
    #[error(
        "expected one inner width, or one for each of the {expected} layers that are kept, found {found}"
    )]
    Count {
        /// Number of layers that are kept.
        expected: usize,
        /// Number of inner widths.
        found: usize,
    },
    /// An inner width exceeds the checkpoint's.
    #[error("expected an inner width of layer {layer} of at most {most}, the checkpoint's, found {found}")]
    Width {
        /// Layer, by its number in the checkpoint.
        layer: usize,
        /// Its inner width in the checkpoint.
        most: usize,
        /// Requested value.
        found: usize,
    },
}

/// Selection of a checkpoint's layers and channels for a smaller model.
#[derive(Debug, PartialEq, Eq)]
struct Slice {
    /// For each layer, its number in the checkpoint.
    kept: Vec<usize>,
    /// Inner widths; empty if they stay unchanged.
    widths: Vec<usize>,
}

/// Returns the layers of `count` that remain. At least one must remain.
fn left(count: usize, dropped: &[usize]) -> Result<Vec<usize>, SliceError> {
    let kept: Vec<usize> = (0..count).filter(|layer| !dropped.contains(layer)).collect();
    if kept.is_empty() || dropped.iter().any(|&layer| layer >= count) {
        return Err(SliceError::Layers { last: count.saturating_sub(1), found: dropped.to_vec() });
    }
    Ok(kept)
}

impl Slice {
    /// Selects all layers of a decoder except `dropped`.
    fn without(arch: &DecoderArch, dropped: &[usize]) -> Result<Self, SliceError> {
        let kept = left(arch.layers.len(), dropped)?;
        // As in the published tool, a layer with shared keys and values must stay even if all layers that share them
        // are removed.
        let mut shared = arch.layers.iter().filter_map(DecoderLayer::shared_entry);
        if let Some(layer) = shared.find(|source| dropped.contains(source)) {
            return Err(SliceError::Shared { layer });
        }
        Ok(Self { kept, widths: Vec::new() })
    }

    /// Selects the layers and channels of a MatFormer size.
    fn sized(arch: &DecoderArch, matformer: &MatFormer) -> Result<Self, SliceError> {
        let count = arch.layers.len();
        if arch.family != Family::Gemma3n {
            return Err(SliceError::Family { found: format!("{:?}", arch.family) });
        }
        if *matformer == MatFormer::E2b && count != MatFormer::E2B_LAYERS {
            let name = matformer.to_string();
            let expected = MatFormer::E2B_LAYERS;
            return Err(SliceError::NotE4b { name, expected, found: count });
        }

        let mix = matformer.mix();
        let slice = Self::without(arch, &mix.skip)?;
        let widths = match mix.widths[..] {
            [width] => vec![width; slice.kept.len()],
            _ => mix.widths,
        };

        if !widths.is_empty() && widths.len() != slice.kept.len() {
            return Err(SliceError::Count { expected: slice.kept.len(), found: widths.len() });
        }

        for (&layer, &found) in slice.kept.iter().zip(&widths) {
            let most = arch.layers.get(layer).and_then(DecoderLayer::mlp).map_or(0, |mlp| mlp.inner);
            if found > most {
                return Err(SliceError::Width { layer, most, found });
            }
        }
        Ok(Self { widths, ..slice })
    }

    /// Returns the architecture of the smaller model.
    fn of(&self, arch: &DecoderArch) -> DecoderArch {
        let mut layers = Vec::with_capacity(self.kept.len());
        for (index, &layer) in self.kept.iter().enumerate() {
            let Some(mut layer) = arch.layers.get(layer).cloned() else { continue };
            if let (Some(mlp), Some(&width)) = (layer.mlp_mut(), self.widths.get(index)) {
                mlp.inner = width;
            }
            let source = layer.shared_entry();
            if let (Some(source), Some(attention)) = (source, layer.attention_mut()) {
                let position = self.kept.iter().position(|&kept| kept == source);
                attention.kv = position.map_or(KvSource::Own, KvSource::Layer);
            }
            layers.push(layer);
        }
        DecoderArch { layers, ..arch.clone() }
    }

    /// Replaces the architecture by that of the smaller model.
    fn cut(self, arch: &mut DecoderArch) -> Self {
        *arch = self.of(arch);
        self
    }

    /// Returns the place of each weight of a smaller model in the weights of the whole one, by its name.
    fn places(&self, whole: &Architecture, smaller: &Architecture) -> HashMap<String, Place> {
        let whole: HashMap<WeightName, Vec<usize>> =
            whole.weights().into_iter().map(|weight| (weight.name, weight.shape)).collect();
        let mut places = HashMap::new();
        for weight in smaller.weights() {
            let mut original = weight.name.clone();
            if original.component == Component::Text {
                original.layer = original.layer.and_then(|layer| self.kept.get(layer).copied());
            }
            let Some(shape) = whole.get(&original) else { continue };
            let mut place = Place { original: original.to_string(), rows: None, columns: None };
            for (dimension, (&count, &all)) in weight.shape.iter().zip(shape).enumerate() {
                let ranges = (count < all).then(|| self.ranges(&original, count));
                match dimension + 1 == shape.len() {
                    true => place.columns = ranges,
                    false => place.rows = place.rows.or(ranges),
                }
            }
            places.insert(weight.name.to_string(), place);
        }
        places
    }

    /// Returns the `count` rows or columns that are kept: the first channels of a layer, or those of the kept layers.
    fn ranges(&self, name: &WeightName, count: usize) -> Vec<Range<usize>> {
        let width = count / self.kept.len();
        match name.layer {
            Some(_) => std::iter::once(0..count).collect(),
            None => self.kept.iter().map(|&layer| layer * width..(layer + 1) * width).collect(),
        }
    }
}

/// Place of a smaller model's weight in a weight of the whole model.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Name in the checkpoint.
    original: String,
    /// Rows that are kept; `None` for all.
    rows: Option<Vec<Range<usize>>>,
    /// Columns that are kept; `None` for all.
    columns: Option<Vec<Range<usize>>>,
}

/// Weights of a smaller model.
struct SlicedWeights {
    whole: Box<dyn WeightSource>,
    places: HashMap<String, Place>,
}

impl WeightSource for SlicedWeights {
    fn weight(&self, name: &str) -> Result<Weight<'_>> {
        let Some(place) = self.places.get(name) else {
            let path = self.whole.file(name).map_or_else(PathBuf::new, Path::to_owned);
            return Err(CheckpointError::MissingTensor { path, name: name.to_owned() });
        };
        let mut weight = self.whole.weight(&place.original)?;
        name.clone_into(&mut weight.name);
        if let Some(rows) = &place.rows {
            weight = weight.with_row_ranges(rows)?;
        }
        match &place.columns {
            Some(columns) => weight.with_column_ranges(columns),
            None => Ok(weight),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.places.get(name).is_some_and(|place| self.whole.has(&place.original))
    }

    fn file(&self, name: &str) -> Option<&Path> {
        self.whole.file(&self.places.get(name)?.original)
    }

    fn called(&self, name: &str) -> String {
        self.places.get(name).map_or_else(|| name.to_owned(), |place| self.whole.called(&place.original))
    }
}

impl Checkpoint {
    /// Returns the smaller model that a recipe requests, or this model if it requests none.
    ///
    /// # Errors
    /// [`SliceError`] if this model does not contain the requested one.
    pub fn sliced(mut self, recipe: &Recipe) -> Result<Self, SliceError> {
        let dropped = recipe.drop_layers.as_ref().map(LayerList::layers);
        let whole = self.architecture.clone();
        let slice = match (&mut self.architecture, &recipe.matformer, dropped) {
            (_, None, None) => return Ok(self),
            (_, Some(_), Some(_)) => return Err(SliceError::DroppedTwice),
            (Architecture::Decoder(arch), Some(size), _) => Slice::sized(arch, size)?.cut(arch),
            (Architecture::Decoder(arch), _, Some(dropped)) => Slice::without(arch, dropped)?.cut(arch),
            (Architecture::Encoder(arch), _, Some(dropped)) => {
                let kept = left(arch.layers, dropped)?;
                arch.layers = kept.len();
                Slice { kept, widths: Vec::new() }
            }
            (Architecture::Embedder(arch), _, Some(dropped)) => {
                Slice::without(&arch.decoder, dropped)?.cut(&mut arch.decoder)
            }
            (Architecture::Encoder(_) | Architecture::Embedder(_), Some(_), _) => {
                return Err(SliceError::Family { found: "an encoder".to_owned() });
            }
            (Architecture::Speech(_), Some(_), _) => {
                return Err(SliceError::Family { found: "a model that transcribes speech".to_owned() });
            }
            (Architecture::Speech(_), _, Some(_)) => return Err(SliceError::Sides),
        };
        let places = slice.places(&whole, &self.architecture);
        self.weights = Box::new(SlicedWeights { whole: self.weights, places });
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns the architecture of a configuration with these keys. For missing keys, its class has the sizes of E4B.
    fn published(keys: Value) -> DecoderArch {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": keys});
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        match super::super::architecture(folder.path()) {
            Ok(Architecture::Decoder(arch)) => arch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn e2b_is_what_its_own_configuration_says() {
        let e4b = published(json!({}));
        let slice = Slice::sized(&e4b, &MatFormer::E2b).unwrap();
        let e2b = json!({"num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10});
        assert_eq!(slice.of(&e4b), published(e2b));
        let smaller = Architecture::Decoder(slice.of(&e4b));
        let places = slice.places(&Architecture::Decoder(e4b), &smaller);
        let check = |name: &str, original: &str, rows, columns| {
            let original = original.to_owned();
            assert_eq!(places.get(name), Some(&Place { original, rows, columns }), "{name}");
        };
        check("layers.20.attn.q_proj.weight", "layers.25.attn.q_proj.weight", None, None);
        check("norm.weight", "norm.weight", None, None);
        let first = Some(std::iter::once(0..8192).collect());
        check("layers.20.mlp.up_proj.weight", "layers.25.mlp.up_proj.weight", first.clone(), None);
        check("layers.0.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight", None, first);
        let of_layers = Some((0..20).chain(25..35).map(|layer| layer * 256..(layer + 1) * 256).collect());
        check("per_layer.embed.weight", "per_layer.embed.weight", None, of_layers.clone());
        check("per_layer.proj.weight", "per_layer.proj.weight", of_layers, None);
        assert_eq!(places.get("layers.30.attn_norm.weight"), None);
    }

    #[test]
    fn what_the_checkpoint_does_not_hold_is_refused() {
        let e4b = published(json!({}));
        let check = |arch: &DecoderArch, text: &str, expect: &str| {
            let error = Slice::sized(arch, &text.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        };
        check(&e4b, "ffn=16385", "inner width of layer 0 of at most 16384, the checkpoint's, found 16385");
        check(&e4b, "ffn=8192*30", "each of the 35 layers that are kept, found 30");
        check(&e4b, "ffn=8192*29+20000,skip=20-24", "inner width of layer 34 of at most");
        check(&e4b, "skip=18", "layer 18 cannot be dropped: later layers share its keys and values");
        check(&e4b, "skip=19", "layer 19 cannot be dropped");
        check(&e4b, "skip=35", "layers to drop from 0 to 34");
        check(&e4b, "skip=0-34", "with at least one left");
        let dropped = |layers: &[usize]| Slice::without(&e4b, layers).unwrap_err().to_string();
        assert_eq!(
            dropped(&[3, 35]),
            "expected layers to drop from 0 to 34, with at least one left, found [3, 35]"
        );
        assert!(dropped(&(0..35).collect::<Vec<_>>()).contains("with at least one left"));
        assert!(dropped(&[18]).contains("layer 18 cannot be dropped"));
        check(
            &published(json!({"num_hidden_layers": 30})),
            "e2b",
            "expected the 35 layers of Gemma 3n E4B for e2b, found 30",
        );
        check(
            &DecoderArch { family: Family::Gemma3, ..e4b },
            "e2b",
            "expected Gemma 3n, which contains smaller models, found Gemma3",
        );
    }
}
