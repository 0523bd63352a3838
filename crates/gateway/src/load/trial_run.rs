//! One run of a new package's graph on the CPU, so that a graph that fails is found before the package is installed.

use std::{path::Path, sync::Arc};

use narthex_catalog::network::Network;
use narthex_device::{DeviceError, ep::Facts, runtime::Runtime, static_shapes::Form};
use narthex_engine::encoder::{Encoder, Text};
use narthex_spec::{
    ProgressSink, Variant,
    manifest::{PhonemeSource, Pronunciation},
    progress::{Progress, Stage, Unit},
};

use crate::{
    cancel::Cancel,
    config::Config,
    error::Error,
    library::{
        Library,
        package::{self, Package},
        package_key::PackageKey,
    },
    load::{
        request::{DeviceAssignment, LoadRequest},
        runtime_choice::{cpu_library, cpu_runtime},
        sessions::{self, Model},
        transcriber,
        verify::{feed, reference_texts},
        voice,
    },
};

/// Maximum number of tokens of the run.
const MAX_TOKENS: usize = 8;

/// Runs the graph of a package in a folder. A graph that the CPU cannot run, because it is bound to a device or has
/// operators of other providers, is accepted with a note. ONNX Runtime is installed if it is not; without the network,
/// the graph is accepted with a note instead.
///
/// # Errors
/// [`Error::BadPackage`] with ONNX Runtime's reason; [`Error::Catalog`] if ONNX Runtime cannot be installed.
pub(crate) fn run(
    library: &Library,
    key: &PackageKey,
    folder: &Path,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    let package = Arc::new(Package::open(key, folder)?);
    if package.manifest.bound.is_some() {
        return Ok(());
    }

    let is_installed = Runtime::loaded().is_some() || cpu_library(library)?.is_some();
    if !is_installed && library.store.network() == Network::CacheOnly {
        let note = "The graph was not run, because ONNX Runtime is not installed and downloads are disabled; `narthex \
                    runtime install` installs it.";
        progress.event(Progress::Note(note.to_owned()));
        return Ok(());
    }

    let _stage = Stage::start(progress, "Running the graph once", Unit::Nothing, None);
    let request = LoadRequest {
        package: package.clone(),
        runtime: cpu_runtime(library, progress, cancel)?,
        facts: Arc::new(Facts::default()),
        config: Arc::new(Config { slots: 1, ..(*library.config).clone() }),
        store: library.store.clone(),
        reservation: None,
        progress,
        cancel: cancel.clone(),
    };

    let outcome = if package.manifest.voice.is_some() {
        speak_once(&request)
    } else if package.manifest.transcriber.is_some() {
        transcriber::open(&request).and_then(|mut open| open.transcriber.try_out())
    } else {
        run_once(&request)
    };
    match outcome {
        Err(Error::Device(DeviceError::Ort { message, .. })) if is_unavailable(&message) => {
            progress.event(Progress::Note(format!("The graph does not run on the CPU: {message}")));
            Ok(())
        }
        Err(error @ (Error::Device(_) | Error::Step(_))) => {
            Err(package::bad_package(key, format!("its graph does not run: {error}")))
        }
        other => other,
    }
}

/// Returns whether ONNX Runtime lacks an operator on the CPU, as with graphs for GPUs.
fn is_unavailable(message: &str) -> bool {
    message.contains("NOT_IMPLEMENTED") || message.contains("Could not find an implementation")
}

/// Speaks a few phonemes.
fn speak_once(request: &LoadRequest<'_>) -> Result<(), Error> {
    let entry = request.manifest().voice.iter();
    let is_espeak = |spoken: &Pronunciation| matches!(spoken.source, PhonemeSource::Espeak { .. });
    if entry.flat_map(|entry| &entry.pronunciations).any(is_espeak)
        && let Err(error) = voice::espeak::check_installed(&request.config)
    {
        let note = format!("{error}; {}.", error.hint().unwrap_or_default());
        request.progress.event(Progress::Note(note));
    }
    let mut voice = voice::open(request)?.voice;
    let Some(speaker) = voice::speaker(request.manifest(), None) else { return Ok(()) };
    voice.try_out(speaker)
}

fn run_once(request: &LoadRequest<'_>) -> Result<(), Error> {
    let texts = reference_texts(&request.package)?;
    let Some(text) = texts.first() else { return Ok(()) };
    let tokens = &text[..text.len().min(MAX_TOKENS)];
    match sessions::open(request, &DeviceAssignment::cpu(), Variant::Dynamic, Form::Graph)?.model {
        Model::Decoder(mut executor) => {
            feed(&mut executor, 0, tokens)?;
        }
        Model::Encoder(mut encoder) => {
            encoder.run(&[Text { requested: &[0], ..Text::of(tokens) }])?;
        }
        // No import is a model for speech.
        Model::Speech(_) => {}
    }
    Ok(())
}
