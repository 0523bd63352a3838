//! Cached compilations: the compiled contexts of a package, and the folders of providers that store their own.

use super::*;

#[test]
fn a_package_s_contexts_that_do_not_hold_are_refused_with_the_reason_and_made_anew() {
    let package = Package::new();
    let made = package.compiled_for(&[QnnChip::Elite]).unwrap();
    let check = |edit: &dyn Fn(&mut Context), expected: &str, begun: &[&str]| {
        let mut manifest = made.clone();
        manifest.contexts.iter_mut().for_each(edit);
        package.write(&manifest);
        let stages = Stages::default();
        let sink = |event: Progress| stages.hear(&event);
        let loaded = package.load_watched(NpuPolicy::Require, &sink, &Cancel::new());
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
        let report = loaded.placement();
        assert_eq!((report.device, report.npu_share), (DeviceName::Qnn, 1.0));
        let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
        let told = note.strip_prefix("the package's contexts were refused: ");
        assert!(told.is_some_and(|told| told.contains(expected)), "{note}");
        assert_eq!(*stages.0.lock().unwrap(), begun);
    };
    let anew = [COMPILING, CHECKING];
    check(&|_| (), "they are for qnn:8-elite, but this is qnn:x-elite", &anew);
    let here = |context: &mut Context| context.target = Target::Qnn(vec![QnnChip::XElite]);
    let old = |context: &mut Context| {
        here(context);
        context.compiler = "onnxruntime-qnn 2.6.0".to_owned();
    };
    check(&old, "they were made by onnxruntime-qnn 2.6.0, but this is onnxruntime-qnn ", &anew);
    let binary = made.files.keys().find(|file| file.ends_with(".bin")).unwrap();
    let whole = fs::read(package.folder.join(binary)).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(package.folder.join(binary), damaged).unwrap();
    check(&here, &format!("{binary} is damaged"), &anew);
    // Undamaged contexts are handed to the provider, which refuses their shared weights on this machine. The contexts
    // that this machine compiled earlier are used.
    fs::write(package.folder.join(binary), whole).unwrap();
    check(&here, "failed to load the graph", &[]);
}

/// Loads a package with the facts of a Mac. Returns the model, and whether CoreML got a folder for its compiled graphs.
fn on_a_mac(scheme: Scheme) -> (LoadedModel, bool) {
    let package = Package::of(scheme);
    let gateway = gateway_of(&package.home, NpuPolicy::Prefer, "coreml,cpu");
    let loaded = package.load_in(&gateway, &mac(), (&Quiet, &Cancel::new())).unwrap();
    let machine = gateway.library().store.machine(&package.folder, "coreml").unwrap();
    (loaded, machine.folder("compiled").is_some())
}

#[test]
fn a_provider_that_keeps_what_it_compiles_has_a_folder_for_it() {
    assert!(on_a_mac(Scheme::F16).1);
}

#[test]
fn the_compiled_graphs_of_another_load_are_not_removed_before_it_has_ended() {
    let package = Package::of(Scheme::F16);
    let gateway = gateway_of(&package.home, NpuPolicy::Prefer, "coreml,cpu");
    let store = &gateway.library().store;
    let machine = store.machine(&package.folder, "coreml").unwrap();
    let folder = machine.stage("compiled").unwrap().commit().unwrap();
    fs::write(folder.join("graph"), "of another version").unwrap();
    let manifest = package::Package::open(&package.key, &package.folder).unwrap().manifest;
    let lock = format!("compiled-{}-{}", manifest.name.file_stem(), manifest.recipe.scheme);
    let other = store.try_lock(&lock).unwrap().unwrap();
    // The load is cancelled once it waits for the lock.
    let cancel = Cancel::new();
    let sink = |event: Progress| {
        if matches!(event, Progress::Note(note) if note.contains("Waiting for another")) {
            cancel.cancel();
        }
    };
    assert!(package.load_in(&gateway, &mac(), (&sink, &cancel)).is_err() && cancel.is_cancelled());
    assert!(folder.join("graph").is_file());
    drop(other);
    package.load_in(&gateway, &mac(), (&Quiet, &Cancel::new())).unwrap();
    assert!(folder.is_dir() && !folder.join("graph").exists());
}

#[test]
fn coreml_refuses_block_quantised_weights_before_it_is_tried() {
    let (loaded, tried) = on_a_mac(Scheme::W8);
    let passed_over = loaded.status().passed_over;
    let [passed] = &passed_over[..] else { panic!("{passed_over:?}") };
    assert!(!tried && passed.announced);
    assert_eq!(passed.reason, "it does not support block-quantised weights such as w8; it needs f16");
    assert!(passed.fix.as_ref().is_some_and(|fix| fix.contains("--scheme f16")), "{passed:?}");
    let config = Config { providers: "coreml,cpu".parse().unwrap(), ..Config::standard() };
    let wanted = |scheme| eligibility::needs_static_graphs(&config, scheme, &mac());
    assert_eq!([Scheme::W8, Scheme::W4, Scheme::F16].map(wanted), [false, false, true]);
}
