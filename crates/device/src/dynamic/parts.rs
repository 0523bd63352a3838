//! Parts of a package that an executor of the dynamic variant reads, and its loaded graphs.

use std::path::Path;

use narthex_engine::executor::Limits;
use narthex_spec::{
    DType,
    arch::{ImportedDecoder, Steps, Structure},
    manifest::{GraphEntry, KvContent, KvLayout, Manifest},
};
use ort::value::TensorElementType;

use super::{DecoderInput, ExecutorOptions, long_rope::LongRope, names::DecoderNames};
use crate::{
    error::DeviceError,
    ort::{Session, SessionOptions},
    package,
    rope_switch::RopeSwitch,
    runtime::Runtime,
    vocab_subset::VocabSubset,
};

pub(super) struct LoadedGraph {
    pub(super) file: String,
    pub(super) names: DecoderNames,
    /// Maximum number of past tokens.
    pub(super) past: usize,
    pub(super) session: Session,
}

impl LoadedGraph {
    pub(super) fn open(
        runtime: &Runtime,
        package: &Path,
        entry: &GraphEntry,
        names: DecoderNames,
        options: SessionOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let session = Session::open(runtime, &package::path(package, &entry.file)?, options)?;
        session.check_names(entry)?;
        let past = package::chunk(entry).map_or(usize::MAX, |(_, past)| past);
        Ok(Self { file: entry.file.clone(), names, past, session })
    }

    /// Returns the layouts of the cache with the element types of the loaded graph. They differ from the package's if
    /// attention was replaced when the graph was loaded.
    pub(super) fn cache_layouts(&self, layouts: &[KvLayout]) -> Vec<KvLayout> {
        let mut names = self.names.cache.iter();
        let mut loaded = layouts.to_vec();
        for layout in loaded.iter_mut().filter(|layout| layout.content == KvContent::KeysAndValues) {
            let Some([keys, _]) = names.next() else { break };
            layout.dtype = match self.session.input_type(&keys.past) {
                Some(TensorElementType::Float16) => DType::F16,
                Some(TensorElementType::Int8) => DType::I8,
                _ => layout.dtype,
            };
        }
        loaded
    }
}

/// Maximum context of an imported decoder in tokens. It has no table to check the context against.
const MAX_CONTEXT: usize = 1 << 24;

/// Parts of a decoder's package other than the graph.
pub(crate) struct DecoderParts<'a> {
    pub(super) entry: &'a GraphEntry,
    pub(crate) feed: DecoderInput,
    pub(super) kept: VocabSubset,
    pub(super) steps: Steps,
    pub(crate) limits: Limits,
    pub(super) long: Option<LongRope>,
    pub(super) switch: RopeSwitch,
    pub(super) names: DecoderNames,
}

impl<'a> DecoderParts<'a> {
    /// Reads and checks the parts.
    pub(crate) fn read(
        package: &Path,
        manifest: &'a Manifest,
        options: &ExecutorOptions<'_>,
    ) -> Result<Self, DeviceError> {
        let (arch, longest, steps) = match &manifest.architecture {
            Structure::Decoder(arch) => (Some(arch), arch.context, Steps::Any),
            Structure::ImportedDecoder(ImportedDecoder { steps, .. }) => (None, MAX_CONTEXT, *steps),
            _ => return Err(DeviceError::package("a decoder", "an encoder")),
        };

        if manifest.max_length == 0 || manifest.max_length > longest {
            let expected = format!("a length of 1 to {longest} tokens");
            return Err(DeviceError::package(expected, manifest.max_length));
        }

        let entry = package::graph(manifest)?;
        let feed = match (&manifest.architecture, arch) {
            (Structure::ImportedDecoder(imported), _) => DecoderInput::tokens(imported)?,
            (_, Some(arch)) => DecoderInput::rows(package, manifest, arch)?,
            _ => return Err(DeviceError::package("a decoder", "an encoder")),
        };
        let kept = match arch {
            Some(arch) => VocabSubset::open(package, manifest, arch)?,
            None => VocabSubset::all(feed.vocab()),
        };

        let limits = options.limits(manifest.max_length, feed.vocab(), &entry.kv)?;
        let long = arch.map(|arch| LongRope::open(package, manifest, arch)).transpose()?.flatten();
        let mut limits = limits;
        if let Some((tokens, past)) = package::chunk(entry) {
            let most =
                package::prompt_graph(manifest).and_then(package::chunk).map_or(tokens, |(most, _)| most);
            limits.context = limits.context.min(past.saturating_add(1));
            limits.chunk = limits.chunk.min(most.max(1)).min(limits.context);
        }

        let names = DecoderNames::new(entry, &feed)?;
        let switch = arch.map_or_else(RopeSwitch::none, |arch| RopeSwitch::of(arch, &limits));
        Ok(Self { entry, feed, kept, steps, limits, long, switch, names })
    }
}
