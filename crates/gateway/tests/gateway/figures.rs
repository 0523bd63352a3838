//! Comparison of the catalogue's figures with those that the compiler derives from the entries' settings.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{collections::BTreeMap, fmt::Write, fs, path::Path, thread};

use narthex_catalog::index::{Catalog, Entry, Figures};
use narthex_checkpoint::{self as checkpoint, PublishedEmbedding};
use narthex_gateway::plan::ModelEstimate;
use narthex_spec::{ModelKind, ModelName, Scheme, Target, arch::Architecture};

/// The NPU that the catalogue's scores are for.
const TARGET: &str = "qnn:x-elite";

/// Returns the entries that are compiled. Voices are imported.
fn compiled(catalog: &Catalog) -> impl Iterator<Item = &Entry> {
    catalog.entries().iter().filter(|entry| entry.kind != ModelKind::Speech)
}

/// Returns the architecture of an entry's model.
fn architecture(entry: &Entry) -> Architecture {
    let embedding = entry.pooling.map(|pooling| PublishedEmbedding { pooling, dense: &entry.dense });
    checkpoint::architecture_from_config(entry.config.clone(), embedding)
        .unwrap_or_else(|error| panic!("{}: {error}", entry.name))
}

fn figures(architecture: &Architecture) -> Figures {
    let target: Target = TARGET.parse().unwrap();
    let estimate = ModelEstimate::new(architecture, std::slice::from_ref(&target)).unwrap();
    let (scheme, best) = estimate.best(|known| *known == target).unwrap();
    let bytes = |scheme| estimate.scheme(scheme).unwrap().bytes;
    Figures {
        w8: bytes(Scheme::W8),
        w4: bytes(Scheme::W4),
        score: (best.score.total * 10.0).round() / 10.0,
        scheme,
        runs: best.runs(),
    }
}

/// Returns the figures of every entry. Models with equal architectures are computed once.
fn computed(catalog: &Catalog) -> BTreeMap<ModelName, Figures> {
    let mut models: Vec<(Architecture, Vec<&ModelName>)> = Vec::new();
    for entry in compiled(catalog) {
        let architecture = architecture(entry);
        match models.iter_mut().find(|(known, _)| *known == architecture) {
            Some((_, names)) => names.push(&entry.name),
            None => models.push((architecture, vec![&entry.name])),
        }
    }
    let every_other = &|from: usize| {
        let models = models.iter().skip(from).step_by(2);
        models.map(|(architecture, names)| (figures(architecture), names)).collect::<Vec<_>>()
    };
    let found = thread::scope(|scope| {
        let [odd, even] = [1, 0].map(|from| scope.spawn(move || every_other(from)));
        [odd.join().unwrap(), even.join().unwrap()].concat()
    });
    found
        .into_iter()
        .flat_map(|(figures, names)| names.iter().map(move |&name| (name.clone(), figures)))
        .collect()
}

#[test]
fn parameters_are_counted_from_the_settings() {
    for entry in compiled(&Catalog::builtin().unwrap()) {
        assert_eq!(checkpoint::parameters(&architecture(entry)), entry.parameters, "{}", entry.name);
    }
}

#[test]
fn figures_are_what_the_compiler_computes() {
    let catalog = Catalog::builtin().unwrap();
    let computed = computed(&catalog);
    assert_eq!(computed.len(), compiled(&catalog).count());
    for (name, computed) in computed {
        let entry = catalog.get(&name).unwrap();
        let advice = "cargo test -p narthex-gateway --test gateway figures -- --ignored";
        assert_eq!(catalog.figures(entry), Some(&computed), "{name}: `{advice}` writes them anew");
    }
}

/// Not a test: writes the catalogue's file.
#[test]
#[ignore = "it writes crates/catalog/figures.toml"]
fn write_the_figures() {
    let mut text = format!(
        "# What the catalogue's models come to: computed from the entries' settings, the score for {TARGET}.\n\
         # Written by `cargo test -p narthex-gateway --test gateway figures -- --ignored`; the tests compute all of it again.\n"
    );
    for (name, figures) in computed(&Catalog::builtin().unwrap()) {
        let Figures { w8, w4, score, scheme, runs } = figures;
        write!(
            text,
            "\n[\"{name}\"]\nw8 = {w8}\nw4 = {w4}\nscore = {score:.1}\nscheme = \"{scheme}\"\nruns = {runs}\n"
        )
        .unwrap();
    }
    fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../catalog/figures.toml"), text).unwrap();
}
