//! Compiled contexts of static graphs for this machine's NPU: from the package, or made on this machine and stored. A
//! stale, foreign or damaged context is refused with the reason and made again.

use std::{collections::BTreeMap, ops::ControlFlow, path::PathBuf};

use narthex_catalog::store::MachineFolder;
use narthex_device::{
    ep::{Device, QnnOptions},
    precompile::{Job, Weights, precompile},
    static_shapes::Form,
};
use narthex_spec::{
    DeviceName, NpuOptions, Sha256, Target, Variant,
    manifest::{Context, Part},
    progress::{Stage, Unit},
    target::QnnChip,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    load::{
        cache_key::{CacheKey, DeviceCache, provider, to_json},
        request::{DeviceAssignment, LoadRequest, SelectedDevice},
        sessions::{self, Sessions},
    },
};

/// Folder of the contexts that this machine made.
const FOLDER: &str = "contexts";

/// Record of those contexts.
const RECORD: &str = "contexts.json";

/// Folder in which a provider stores its own compiled graphs.
const PROVIDER_FOLDER: &str = "compiled";

/// Record of the provider's folder.
const PROVIDER_RECORD: &str = "compiled.json";

/// Record of the contexts in [`FOLDER`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ContextRecord {
    key: CacheKey,
    files: BTreeMap<String, Sha256>,
}

/// Sets the folder of a provider that stores its own compiled graphs. Files under another key are removed.
pub(crate) fn with_provider_cache(mut device: Device, machine: &MachineFolder, key: &CacheKey) -> Device {
    if let Some(cache) = device.cache() {
        match provider_folder(machine, key) {
            Ok(folder) => *cache = Some(folder),
            Err(error) => tracing::warn!("compiled graphs are not stored for the next load: {error}"),
        }
    }
    device
}

/// Returns the folder of a provider's compiled graphs, empty if they were made under another key.
fn provider_folder(machine: &MachineFolder, key: &CacheKey) -> Result<PathBuf, Error> {
    let stored: Option<CacheKey> =
        machine.read(PROVIDER_RECORD)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let is_valid = stored.is_some_and(|stored| stored == *key);
    match machine.folder(PROVIDER_FOLDER).filter(|_| is_valid) {
        Some(folder) => Ok(folder),
        None => {
            // The folder is created last, so that it never exists together with the record of another key.
            machine.remove(PROVIDER_FOLDER)?;
            machine.write(PROVIDER_RECORD, &to_json(key)?)?;
            Ok(machine.stage(PROVIDER_FOLDER)?.commit()?)
        }
    }
}

/// Opens the static graphs; those of `compiler` are opened from compiled contexts. Adds refused contexts to `notes`.
pub(crate) fn open(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    compiler: &SelectedDevice,
    cache: &DeviceCache,
    notes: &mut Vec<String>,
) -> Result<Sessions, Error> {
    let open = |form: Form<'_>| sessions::open(request, devices, Variant::Static, form);
    if let (DeviceName::Qnn, Device::Qnn(options)) = (compiler.name, &compiler.device)
        && let Some(opened) = open_from_package(request, devices, options, notes)
    {
        return Ok(opened);
    }

    match stored(&cache.folder, &cache.key) {
        Ok(Some(folder)) => match open(Form::Folder(&folder)) {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                notes.push(format!("the stored contexts were refused and compiled again: {error}"));
                if cache.folder.remove(FOLDER).is_err() {
                    return open(Form::Graph);
                }
            }
        },
        Ok(None) => {}
        Err(reason) => notes.push(format!("the stored contexts were refused and compiled again: {reason}")),
    }

    match compile(request, devices, compiler, cache) {
        Ok(folder) => open(Form::Folder(&folder)),
        // The cache is not writable, but the provider still compiles during the load.
        Err(Error::Catalog(error)) if !matches!(error, narthex_catalog::Error::Cancelled) => {
            notes.push(format!("the contexts are not stored for the next load: {error}"));
            open(Form::Graph)
        }
        Err(error) => Err(error),
    }
}

/// Opens the package's contexts for this NPU and, if known, its chip. Adds refused contexts to `notes`.
fn open_from_package(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    options: &QnnOptions,
    notes: &mut Vec<String>,
) -> Option<Sessions> {
    let chip = options.chips.first().copied();
    let mut refused = |reason: String| notes.push(format!("the package's contexts were refused: {reason}"));
    let contexts = matching(&request.manifest().contexts, chip).map_err(&mut refused).ok()?;
    contexts.into_iter().find_map(|context| {
        check_vtcm(&context.target, options.npu).map_err(&mut refused).ok()?;
        check_files(request, context).map_err(&mut refused).ok()?;
        let opened = sessions::open(request, devices, Variant::Static, Form::Context(&context.target));
        opened.map_err(|error| refused(error.to_string())).ok()
    })
}

/// Refuses contexts that need more vector memory (VTCM) than the settings allow. A package's contexts use all the VTCM
/// of their chips.
fn check_vtcm(target: &Target, NpuOptions { vtcm_mb, .. }: NpuOptions) -> Result<(), String> {
    let Target::Qnn(chips) = target else { return Ok(()) };
    match (QnnChip::shared_vtcm(chips), vtcm_mb) {
        (Some(made), Some(allowed)) if made > allowed => {
            Err(format!("they were made with {made} MiB of VTCM, and --npu-option allows {allowed}"))
        }
        _ => Ok(()),
    }
}

/// Returns one context of each target that the chip belongs to. If the chip is unknown, all are tried in turn, and the
/// provider refuses those for other chips.
fn matching(contexts: &[Context], chip: Option<QnnChip>) -> Result<Vec<&Context>, String> {
    let mut matching: Vec<&Context> = Vec::new();
    for context in contexts {
        let matches_chip = match (&context.target, chip) {
            (Target::Qnn(chips), Some(chip)) => chips.contains(&chip),
            (Target::Qnn(_), None) => true,
            (Target::OpenVino(_) | Target::IntelNpu(_), _) => false,
        };
        if matches_chip && matching.iter().all(|other| other.target != context.target) {
            matching.push(context);
        }
    }
    match (contexts.first(), chip) {
        (Some(first), Some(chip)) if matching.is_empty() => {
            Err(format!("they are for {}, but this is qnn:{}", first.target, chip.spec().name))
        }
        _ => Ok(matching),
    }
}

/// Refuses contexts of another compiler, and damaged ones.
fn check_files(request: &LoadRequest<'_>, context: &Context) -> Result<(), String> {
    let expected = provider(context.target.ep());
    if context.compiler != expected {
        return Err(format!("they were made by {}, but this is {expected}", context.compiler));
    }
    let package = &request.package.folder;
    let path = package.join(&context.file);
    let folder = path.parent().unwrap_or(package);
    let digests = MachineFolder::digests(folder).map_err(|error| error.to_string())?;
    for (file, entry) in &request.manifest().files {
        let path = package.join(file);
        let is_in_folder = path.parent() == Some(folder);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_in_folder && digests.get(&name) != Some(&entry.sha256) {
            return Err(format!("{file} is damaged"));
        }
    }
    Ok(())
}

/// Returns the folder of the contexts that this machine made, or the reason why they are not valid.
fn stored(machine: &MachineFolder, key: &CacheKey) -> Result<Option<PathBuf>, String> {
    let Some(folder) = machine.folder(FOLDER) else { return Ok(None) };
    let bytes = machine.read(RECORD).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or("they have no record")?;
    let record: ContextRecord =
        serde_json::from_slice(&bytes).map_err(|error| format!("their record is damaged: {error}"))?;
    if let Some(difference) = record.key.difference(key) {
        return Err(difference);
    }
    let digests = MachineFolder::digests(&folder).map_err(|error| error.to_string())?;
    match record.files.iter().find(|(file, digest)| digests.get(*file) != Some(digest)) {
        Some((file, _)) => Err(format!("{file} is damaged")),
        None => Ok(Some(folder)),
    }
}

/// Compiles the static graphs of a device and stores their contexts. Returns the folder. If two processes have the same
/// request, one compiles and the other waits and uses its contexts.
fn compile(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    compiler: &SelectedDevice,
    cache: &DeviceCache,
) -> Result<PathBuf, Error> {
    let manifest = request.manifest();
    let cancel = &request.cancel;
    let lock = format!("contexts-{}-{}-{}", manifest.name.file_stem(), manifest.recipe.scheme, compiler.name);
    let _lock = request.store.lock(&lock, request.progress, cancel.flag())?;
    if let Ok(Some(folder)) = stored(&cache.folder, &cache.key) {
        return Ok(folder);
    }

    let staging = cache.folder.stage(FOLDER)?;
    let folder = &request.package.folder;
    let graphs = manifest.graphs.iter().filter(|graph| {
        let head = devices.head.as_ref().filter(|_| matches!(graph.part, Part::Head { .. }));
        graph.variant == Variant::Static && head.unwrap_or(&devices.main).name == compiler.name
    });
    let paths: Vec<(PathBuf, PathBuf)> =
        graphs.map(|graph| (folder.join(&graph.file), staging.path().join(&graph.file))).collect();
    let jobs: Vec<Job<'_>> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
    let title = format!("Compiling for {}", compiler.name.describe());
    let stage = Stage::start(request.progress, title, Unit::Items, Some(jobs.len() as u64));
    precompile(
        request.runtime,
        &compiler.device,
        &jobs,
        Weights::Separate,
        request.fallback_policy(),
        &mut |count| {
            stage.advance(count as u64);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    )?;

    let files = MachineFolder::digests(staging.path())?;
    let record = ContextRecord { key: cache.key.clone(), files };
    // The record is written first, so that contexts never exist together with the record of another key.
    cache.folder.remove(FOLDER)?;
    cache.folder.write(RECORD, &to_json(&record)?)?;
    Ok(staging.commit()?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use narthex_device::ep::{CoreMlOptions, OpenVinoOptions, VitisAiOptions};
    use narthex_spec::{OpenVinoDevice, manifest::PlacementRecord};

    use super::*;

    fn key(provider: &str) -> CacheKey {
        CacheKey {
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
            let found = matching(&contexts, chip).unwrap();
            let targets: Vec<&Target> = found.iter().map(|context| &context.target).collect();
            let expected: Vec<Target> = expected.iter().map(|chips| Target::Qnn(chips.to_vec())).collect();
            assert_eq!(targets, expected.iter().collect::<Vec<_>>(), "{chip:?}");
        };
        check(Some(QnnChip::XElite), &[&elite]);
        check(Some(QnnChip::Gen3), &[&pair]);
        check(None, &[&elite, &pair]);
        let refused = matching(&contexts, Some(QnnChip::Elite)).unwrap_err();
        assert_eq!(refused, "they are for qnn:x-elite, but this is qnn:8-elite");
        assert!(matching(&[], Some(QnnChip::Elite)).unwrap().is_empty());
    }

    #[test]
    fn contexts_that_need_more_memory_than_allowed_are_refused() {
        let target = Target::Qnn(vec![QnnChip::XElite, QnnChip::Gen3]);
        let check = |text: &str| check_vtcm(&target, text.parse().unwrap());
        assert_eq!(
            (check_vtcm(&target, NpuOptions::default()), check("vtcm=8,priority=high")),
            (Ok(()), Ok(()))
        );
        assert_eq!(
            check("vtcm=4").unwrap_err(),
            "they were made with 8 MiB of VTCM, and --npu-option allows 4"
        );
    }

    #[test]
    fn a_provider_s_folder_is_valid_under_its_key_alone() {
        let home = tempfile::tempdir().unwrap();
        let store = narthex_catalog::store::Store::open(Some(home.path().join("home"))).unwrap();
        let package = home.path().join("package");
        std::fs::create_dir(&package).unwrap();
        std::fs::write(package.join("manifest.json"), "{}").unwrap();
        let machine = store.machine(&package, "openvino").unwrap();
        let folder = |now: &CacheKey| {
            let npu = Device::OpenVino(OpenVinoOptions::new(OpenVinoDevice::Npu));
            let folders =
                [npu, Device::CoreMl(CoreMlOptions::default()), Device::VitisAi(VitisAiOptions::default())]
                    .map(|device| with_provider_cache(device, &machine, now).cache().cloned().flatten());
            assert!(folders.iter().all(|folder| *folder == folders[0]));
            folders[0].clone().unwrap()
        };
        let (now, later) = (key("onnxruntime-ep-openvino 1.8.1"), key("1.9"));
        let blob = folder(&now).join("graph.blob");
        std::fs::write(&blob, "compiled").unwrap();
        assert_eq!(folder(&now).join("graph.blob"), blob);
        assert!(blob.is_file());
        assert!(blob.starts_with(home.path()) && folder(&later).is_dir() && !blob.exists());
        let qnn = Device::Qnn(QnnOptions::new(Path::new("/q/plugin.so"), &[]));
        assert_eq!(with_provider_cache(qnn.clone(), &machine, &now), qnn);
    }

    #[test]
    fn only_whole_contexts_under_the_same_key_are_used() {
        let home = tempfile::tempdir().unwrap();
        let store = narthex_catalog::store::Store::open(Some(home.path().join("home"))).unwrap();
        let package: &Path = &home.path().join("package");
        std::fs::create_dir(package).unwrap();
        std::fs::write(package.join("manifest.json"), "{}").unwrap();
        let machine = store.machine(package, "qnn:emulation").unwrap();
        let now = key("onnxruntime-qnn 2.7.0");
        assert_eq!(stored(&machine, &now), Ok(None));
        let staging = machine.stage(FOLDER).unwrap();
        std::fs::write(staging.path().join("g.bin"), "binary").unwrap();
        let record = |provider: &str| ContextRecord {
            key: key(provider),
            files: MachineFolder::digests(staging.path()).unwrap(),
        };
        let (right, old) = (record("onnxruntime-qnn 2.7.0"), record("onnxruntime-qnn 2.6.0"));
        let folder = staging.commit().unwrap();
        assert!(stored(&machine, &now).unwrap_err().contains("no record"));
        machine.write(RECORD, b"{").unwrap();
        assert!(stored(&machine, &now).unwrap_err().contains("damaged"));
        machine.write(RECORD, &to_json(&old).unwrap()).unwrap();
        assert!(stored(&machine, &now).unwrap_err().contains("2.6.0, but this is onnxruntime-qnn 2.7.0"));
        machine.write(RECORD, &to_json(&right).unwrap()).unwrap();
        assert_eq!(stored(&machine, &now), Ok(Some(folder.clone())));
        std::fs::write(folder.join("g.bin"), "binarY").unwrap();
        assert_eq!(stored(&machine, &now), Err("g.bin is damaged".to_owned()));
    }
}
