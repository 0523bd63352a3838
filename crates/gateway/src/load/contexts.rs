//! Compiled forms of fixed graphs for this machine's NPU: those that the package holds, else those that were made on the
//! spot and kept. A stale, foreign or damaged one is refused with its reason, and made anew.

use std::{collections::BTreeMap, ops::ControlFlow, path::PathBuf};

use narthex_catalog::store::MachineFolder;
use narthex_device::{
    ep::{Device, QnnOptions},
    fixed::Form,
    precompile::{Job, Weights, precompile},
};
use narthex_spec::{
    DeviceName, NpuOptions, Sha256, Target, Variant,
    manifest::{Context, GraphEntry, Part},
    progress::{Stage, Unit},
    target::QnnChip,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    load::{
        cache_key::{Circumstances, provider, to_json},
        device_selection::Candidate,
        sessions::{Opened, Opening},
    },
};

/// The folder of the contexts that this machine made.
const FOLDER: &str = "contexts";

/// The record beside them.
const RECORD: &str = "contexts.json";

/// The folder in which a provider keeps by itself what it compiles at a load.
const OWN: &str = "compiled";

/// The record beside it.
const OWN_RECORD: &str = "compiled.json";

/// What the contexts in [`FOLDER`] are.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    circumstances: Circumstances,
    files: BTreeMap<String, Sha256>,
}

/// Whether a device's provider compiles graphs into contexts that can be kept.
pub(crate) fn compiles(device: &Device) -> bool {
    matches!(device, Device::Qnn(_))
}

/// The device, told to keep what it compiles for a package, where its provider does that by itself. What was kept under
/// other circumstances is removed.
pub(crate) fn keeping(mut device: Device, machine: &MachineFolder, now: &Circumstances) -> Device {
    if let Some(cache) = device.cache() {
        match own_folder(machine, now) {
            Ok(folder) => *cache = Some(folder),
            Err(error) => tracing::warn!("what is compiled is not kept for the next load: {error}"),
        }
    }
    device
}

/// The folder of what a provider keeps by itself, empty unless it was made under these circumstances.
fn own_folder(machine: &MachineFolder, now: &Circumstances) -> Result<PathBuf, Error> {
    let made: Option<Circumstances> =
        machine.read(OWN_RECORD)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let holds = made.is_some_and(|made| made.outdated(now).is_none());
    match machine.folder(OWN).filter(|_| holds) {
        Some(folder) => Ok(folder),
        None => {
            // The folder comes last, so that it never lies beside the record of another.
            machine.remove(OWN)?;
            machine.write(OWN_RECORD, &to_json(now)?)?;
            Ok(machine.stage(OWN)?.commit()?)
        }
    }
}

/// Loads the fixed graphs, those of `compiler` in a compiled form. What was refused on the way is added to `notes`.
pub(crate) fn open(
    candidate: &Candidate<'_>,
    compiler: (DeviceName, &Device),
    notes: &mut Vec<String>,
) -> Result<Opened, Error> {
    let Candidate { opening, device, machine, now, .. } = candidate;
    if let (DeviceName::Qnn, Device::Qnn(options)) = compiler
        && let Some(opened) = from_package(opening, device, options, notes)
    {
        return Ok(opened);
    }
    match kept(machine, now) {
        Ok(Some(folder)) => match opening.open(device, Variant::Static, Form::Folder(&folder)) {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                notes.push(format!("the kept contexts were refused and made anew: {error}"));
                if machine.remove(FOLDER).is_err() {
                    return opening.open(device, Variant::Static, Form::Graph);
                }
            }
        },
        Ok(None) => {}
        Err(reason) => notes.push(format!("the kept contexts were refused and made anew: {reason}")),
    }
    match make(candidate, compiler) {
        Ok(folder) => opening.open(device, Variant::Static, Form::Folder(&folder)),
        // Nothing can be kept here, but the provider compiles on the spot all the same.
        Err(Error::Catalog(error)) if !matches!(error, narthex_catalog::Error::Cancelled) => {
            notes.push(format!("the contexts are not kept for the next load: {error}"));
            opening.open(device, Variant::Static, Form::Graph)
        }
        Err(error) => Err(error),
    }
}

/// Loads the package's contexts for this NPU, of this chip where that is known. What was refused is added to `notes`.
fn from_package(
    opening: &Opening<'_>,
    device: &Device,
    options: &QnnOptions,
    notes: &mut Vec<String>,
) -> Option<Opened> {
    let chip = options.chips.first().copied();
    let mut refused = |reason: String| notes.push(format!("the package's contexts were refused: {reason}"));
    let contexts = suiting(&opening.manifest.contexts, chip).map_err(&mut refused).ok()?;
    contexts.into_iter().find_map(|context| {
        fits(&context.target, options.npu).map_err(&mut refused).ok()?;
        check_whole(opening, context).map_err(&mut refused).ok()?;
        let opened = opening.open(device, Variant::Static, Form::Context(&context.target));
        opened.map_err(|error| refused(error.to_string())).ok()
    })
}

/// Refuses contexts that take more vector memory than the settings give. Those of a package take all that their chips have.
fn fits(target: &Target, NpuOptions { vtcm_mb, .. }: NpuOptions) -> Result<(), String> {
    let Target::Qnn(chips) = target else { return Ok(()) };
    match (QnnChip::shared_vtcm(chips), vtcm_mb) {
        (Some(made), Some(wanted)) if made > wanted => {
            Err(format!("they were made with {made} MiB of VTCM, and --npu-option gives {wanted}"))
        }
        _ => Ok(()),
    }
}

/// Of each target that a chip belongs to, one context. Where the chip is not known they are tried in turn, and the
/// provider refuses those for another one.
fn suiting(contexts: &[Context], chip: Option<QnnChip>) -> Result<Vec<&Context>, String> {
    let suits = |context: &Context| match (&context.target, chip) {
        (Target::Qnn(chips), Some(chip)) => chips.contains(&chip),
        (Target::Qnn(_), None) => true,
        (Target::OpenVino(_), _) => false,
    };
    let mut found: Vec<&Context> = Vec::new();
    for context in contexts.iter().filter(|context| suits(context)) {
        if !found.iter().any(|other| other.target == context.target) {
            found.push(context);
        }
    }
    match (contexts.first(), chip) {
        (Some(first), Some(chip)) if found.is_empty() => {
            Err(format!("they are for {}, and this is qnn:{}", first.target, chip.spec().name))
        }
        _ => Ok(found),
    }
}

/// Refuses contexts of another compiler, and damaged ones, with the reason.
fn check_whole(opening: &Opening<'_>, context: &Context) -> Result<(), String> {
    let wanted = provider(context.target.ep());
    if context.compiler != wanted {
        return Err(format!("they were made by {}, and this is {wanted}", context.compiler));
    }
    let place = opening.folder.join(&context.file);
    let folder = place.parent().unwrap_or(opening.folder);
    let found = MachineFolder::digests(folder).map_err(|error| error.to_string())?;
    for (file, entry) in &opening.manifest.files {
        let path = opening.folder.join(file);
        let own = path.parent() == Some(folder);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if own && found.get(&name) != Some(&entry.sha256) {
            return Err(format!("{file} is damaged"));
        }
    }
    Ok(())
}

/// The folder of the contexts that this machine made before; the reason where they hold no longer.
fn kept(machine: &MachineFolder, now: &Circumstances) -> Result<Option<PathBuf>, String> {
    let Some(folder) = machine.folder(FOLDER) else { return Ok(None) };
    let bytes = machine.read(RECORD).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("there is no record of what they are")?;
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| format!("their record is damaged: {error}"))?;
    if let Some(reason) = record.circumstances.outdated(now) {
        return Err(reason);
    }
    let found = MachineFolder::digests(&folder).map_err(|error| error.to_string())?;
    match record.files.iter().find(|(file, digest)| found.get(*file) != Some(digest)) {
        Some((file, _)) => Err(format!("{file} is damaged")),
        None => Ok(Some(folder)),
    }
}

/// Compiles the fixed graphs that run on a device and keeps the contexts; gives their folder. Of two processes that want
/// the same, one compiles and the other finds it made.
fn make(candidate: &Candidate<'_>, (name, device): (DeviceName, &Device)) -> Result<PathBuf, Error> {
    let Candidate { opening, machine, now, .. } = candidate;
    let (manifest, cancel) = (opening.manifest, opening.cancel);
    let lock = format!("contexts-{}-{}-{name}", manifest.name.file_stem(), manifest.recipe.scheme);
    let _lock = opening.store.lock(&lock, opening.progress, cancel.flag())?;
    if let Ok(Some(folder)) = kept(machine, now) {
        return Ok(folder);
    }
    let staging = machine.stage(FOLDER)?;
    let runs_here = |graph: &&GraphEntry| {
        let head = opening.head.filter(|_| matches!(graph.part, Part::Head { .. }));
        graph.variant == Variant::Static && head.map_or(candidate.name, |(head, _)| head) == name
    };
    let fixed = manifest.graphs.iter().filter(runs_here);
    let paths: Vec<(PathBuf, PathBuf)> =
        fixed.map(|graph| (opening.folder.join(&graph.file), staging.path().join(&graph.file))).collect();
    let jobs: Vec<Job<'_>> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
    let title = format!("Compiling for {}", name.describe());
    let stage = Stage::start(opening.progress, title, Unit::Items, Some(jobs.len() as u64));
    let mut done = |count: usize| {
        stage.advance(count as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    precompile(opening.runtime, device, &jobs, Weights::Apart, opening.rest(), &mut done)?;
    let record = Record { circumstances: now.clone(), files: MachineFolder::digests(staging.path())? };
    // The record goes first: contexts without theirs would be trusted, a record without its contexts is nothing.
    machine.remove(FOLDER)?;
    machine.write(RECORD, &to_json(&record)?)?;
    Ok(staging.commit()?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use narthex_device::ep::{CoreMlOptions, OpenVinoOptions, VitisAiOptions};
    use narthex_spec::{OpenVinoDevice, manifest::PlacementRecord};

    use super::*;

    fn circumstances(provider: &str) -> Circumstances {
        Circumstances {
            device: DeviceName::QnnEmulation,
            runtime: "1.31.1".into(),
            provider: provider.into(),
            driver: "unknown".into(),
            settings: BTreeMap::new(),
        }
    }

    #[test]
    fn a_chip_has_the_contexts_for_it_and_an_unknown_one_tries_all() {
        let context = |chips: &[QnnChip], graph: &str| Context {
            target: Target::Qnn(chips.to_vec()),
            graph: graph.to_owned(),
            file: format!("contexts/{graph}"),
            compiler: "onnxruntime-qnn 2.7.0".to_owned(),
            placement: PlacementRecord { subgraphs: BTreeMap::new(), nodes: BTreeMap::new() },
        };
        let (elite, pair) = ([QnnChip::XElite], [QnnChip::X2Elite, QnnChip::Gen3]);
        let contexts = [context(&elite, "a"), context(&elite, "b"), context(&pair, "a"), context(&pair, "b")];
        let check = |chip: Option<QnnChip>, expected: &[&[QnnChip]]| {
            let found = suiting(&contexts, chip).unwrap();
            let targets: Vec<&Target> = found.iter().map(|context| &context.target).collect();
            let expected: Vec<Target> = expected.iter().map(|chips| Target::Qnn(chips.to_vec())).collect();
            assert_eq!(targets, expected.iter().collect::<Vec<_>>(), "{chip:?}");
        };
        check(Some(QnnChip::XElite), &[&elite]);
        check(Some(QnnChip::Gen3), &[&pair]);
        check(None, &[&elite, &pair]);
        let refused = suiting(&contexts, Some(QnnChip::Elite)).unwrap_err();
        assert_eq!(refused, "they are for qnn:x-elite, and this is qnn:8-elite");
        assert!(suiting(&[], Some(QnnChip::Elite)).unwrap().is_empty());
    }

    #[test]
    fn contexts_that_take_more_memory_than_is_given_are_refused() {
        let target = Target::Qnn(vec![QnnChip::XElite, QnnChip::Gen3]);
        let check = |text: &str| fits(&target, text.parse().unwrap());
        assert_eq!((fits(&target, NpuOptions::default()), check("vtcm=8,priority=high")), (Ok(()), Ok(())));
        assert_eq!(
            check("vtcm=4").unwrap_err(),
            "they were made with 8 MiB of VTCM, and --npu-option gives 4"
        );
    }

    #[test]
    fn what_a_provider_keeps_by_itself_holds_under_its_circumstances_alone() {
        let home = tempfile::tempdir().unwrap();
        let store = narthex_catalog::store::Store::open(Some(home.path().join("home"))).unwrap();
        let package = home.path().join("package");
        std::fs::create_dir(&package).unwrap();
        std::fs::write(package.join("manifest.json"), "{}").unwrap();
        let machine = store.machine(&package, "openvino").unwrap();
        let folder = |now: &Circumstances| {
            let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
            let folders =
                [npu, Device::CoreMl(CoreMlOptions::default()), Device::VitisAi(VitisAiOptions::default())]
                    .map(|device| keeping(device, &machine, now).cache().cloned().flatten());
            assert!(folders.iter().all(|folder| *folder == folders[0]));
            folders[0].clone().unwrap()
        };
        let (now, later) = (circumstances("onnxruntime-ep-openvino 1.8.1"), circumstances("1.9"));
        let blob = folder(&now).join("graph.blob");
        std::fs::write(&blob, "compiled").unwrap();
        assert_eq!(folder(&now).join("graph.blob"), blob);
        assert!(blob.is_file());
        assert!(blob.starts_with(home.path()) && folder(&later).is_dir() && !blob.exists());
        let qnn = Device::Qnn(QnnOptions::new(Path::new("/q/plugin.so"), &[]));
        assert_eq!(keeping(qnn.clone(), &machine, &now), qnn);
    }

    #[test]
    fn only_whole_contexts_of_these_circumstances_are_taken() {
        let home = tempfile::tempdir().unwrap();
        let store = narthex_catalog::store::Store::open(Some(home.path().join("home"))).unwrap();
        let package: &Path = &home.path().join("package");
        std::fs::create_dir(package).unwrap();
        std::fs::write(package.join("manifest.json"), "{}").unwrap();
        let machine = store.machine(package, "qnn:emulation").unwrap();
        let now = circumstances("onnxruntime-qnn 2.7.0");
        assert_eq!(kept(&machine, &now), Ok(None));
        let staging = machine.stage(FOLDER).unwrap();
        std::fs::write(staging.path().join("g.bin"), "binary").unwrap();
        let record = |provider: &str| Record {
            circumstances: circumstances(provider),
            files: MachineFolder::digests(staging.path()).unwrap(),
        };
        let (right, old) = (record("onnxruntime-qnn 2.7.0"), record("onnxruntime-qnn 2.6.0"));
        let folder = staging.commit().unwrap();
        assert!(kept(&machine, &now).unwrap_err().contains("no record"));
        machine.write(RECORD, b"{").unwrap();
        assert!(kept(&machine, &now).unwrap_err().contains("damaged"));
        machine.write(RECORD, &to_json(&old).unwrap()).unwrap();
        assert!(kept(&machine, &now).unwrap_err().contains("2.6.0, and this is onnxruntime-qnn 2.7.0"));
        machine.write(RECORD, &to_json(&right).unwrap()).unwrap();
        assert_eq!(kept(&machine, &now), Ok(Some(folder.clone())));
        std::fs::write(folder.join("g.bin"), "binarY").unwrap();
        assert_eq!(kept(&machine, &now), Err("g.bin is damaged".to_owned()));
    }
}
