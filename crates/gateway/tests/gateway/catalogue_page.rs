//! The book's page about the catalogue's models, against the catalogue.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::{fs, path::PathBuf};

use narthex_catalog::index::{Access, Catalog, Entry};
use narthex_gateway::plan::{has_room, kept_quality};
use narthex_spec::{Ep, ModelKind, Scheme};

/// Kinds of models, in the order of the page.
const KINDS: [(ModelKind, &str); 8] = [
    (ModelKind::Chat, "Chat"),
    (ModelKind::Text, "Text completion"),
    (ModelKind::Embedding, "Embedding"),
    (ModelKind::Rerank, "Reranking"),
    (ModelKind::Answer, "Question answering"),
    (ModelKind::Masked, "Masked language models"),
    (ModelKind::Transcription, "Speech recognition"),
    (ModelKind::Speech, "Speech"),
];

/// Gigabytes of memory in machines.
const MEMORIES: [u64; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

/// Returns the page.
fn page(catalog: &Catalog) -> String {
    let mut page = String::from(
        "# Models of the catalogue\n\n<!-- Written by `cargo xtask docs` from the catalogue. -->\n\n\
         `narthex list --available` ranks these models for your machine; this page lists them with figures that are the same\n\
         everywhere.\n\n\
         - **`w8`, `w4`**: size of the weights in this scheme.\n\
         - **Quality**: share of the quality that `w8` and `w4` keep: the perplexity in `f32` divided by that in the scheme,\n  \
         in a measurement of `bench/runs`. A dash means that we have not measured the model. Files in 4 bits lose almost\n  \
         nothing in `w4`. For weights that are rounded from floats, the ranking of `list --available` assumes 88 %, as measured\n  \
         with smollm2:135m; larger models usually keep more.\n\
         - **Memory**: the smallest usual machine with room for the weights in `w8`, and in `w4` if that is smaller. Long\n  \
         conversations need more, see `narthex plan`.\n\
         - **Snapdragon X**: the scheme in which every graph satisfies the rules of its NPU, or the reason why no scheme does.\n  \
         The rules were measured with Qualcomm's compiler; [nothing has run on a real NPU](devices/snapdragon.md).\n\
         - **Status**: *tested* means that the published weights have answered in our tests or recorded runs. *Family tested*\n  \
         means that a small model of the same structure agrees with the reference implementation, and that we have not run\n  \
         these weights. *Gated* means that the publisher asks you to accept a licence before the download. *Reads images* and\n  \
         *reads audio* mean that conversations may have [images](vision.md) and [sounds](hearing.md).\n",
    );
    for (kind, title) in KINDS {
        let mut entries: Vec<&Entry> = catalog.entries().iter().filter(|entry| entry.kind == kind).collect();
        entries.sort_by(|a, b| a.parameters.cmp(&b.parameters).then_with(|| a.name.cmp(&b.name)));
        page.push_str(&format!(
            "\n## {title}\n\n| Model | Parameters | Download | `w8` | `w4` | Quality | Memory | Snapdragon X | Status |\n\
             |---|---:|---:|---:|---:|---|---|---|---|\n"
        ));
        entries.into_iter().for_each(|entry| page.push_str(&row(catalog, entry)));
    }
    page.push_str("\n## Notes\n\n");
    for entry in catalog.entries() {
        if let Some(notes) = &entry.notes {
            page.push_str(&format!("- `{}`: {notes}\n", entry.name));
        }
    }
    page
}

/// Returns the row of a model.
fn row(catalog: &Catalog, entry: &Entry) -> String {
    let Some(figures) = catalog.figures(entry) else { return voice_row(entry) };
    let (large, small) = (memory(figures.w8), memory(figures.w4));
    let memory = if large == small { large } else { format!("{large}; `w4`: {small}") };
    let diverging = entry.divergences.iter().find(|known| known.provider == Ep::Qnn);
    let npu = match diverging {
        Some(known) => format!("quarantined: {} nats under HTP emulation", known.divergence),
        None if figures.runs => format!("`{}`", figures.scheme),
        None => "not whole".to_owned(),
    };
    let quality = entry.perplexity.as_ref().and_then(|found| {
        let [w8, w4] = [Scheme::W8, Scheme::W4].map(|scheme| found.kept_quality(scheme));
        Some(format!("`w8`: {:.0} %; `w4`: {:.0} %", w8? * 100.0, w4? * 100.0))
    });
    let quality = quality.unwrap_or_else(|| "–".to_owned());
    let status = if entry.tested { "tested" } else { "family tested" };
    let reads: String = entry.reads.iter().map(|kind| format!(", reads {}", kind.plural())).collect();
    let gated = if entry.access == Access::Gated { ", gated" } else { "" };
    format!(
        "| `{}` | {} | {} | {} | {} | {quality} | {memory} | {npu} | {status}{gated}{reads} |\n",
        entry.name,
        parameters(entry.parameters),
        size(entry.checkpoint_bytes().unwrap()),
        size(figures.w8),
        size(figures.w4),
    )
}

/// Returns the row of a voice, which is imported as it is.
fn voice_row(entry: &Entry) -> String {
    let download = entry.checkpoint_bytes().unwrap();
    let status = if entry.tested { "tested" } else { "family tested" };
    format!(
        "| `{}` | {} | {} | {} | – | – | {} | on the CPU | {status} |\n",
        entry.name,
        parameters(entry.parameters),
        size(download),
        size(entry.parameters),
        memory(entry.parameters),
    )
}

/// Returns the smallest of [`MEMORIES`] with room for weights.
fn memory(weights: u64) -> String {
    let found = MEMORIES.iter().find(|gigabytes| has_room(**gigabytes << 30, weights));
    found.map_or_else(|| "over 256 GB".to_owned(), |gigabytes| format!("{gigabytes} GB"))
}

fn parameters(count: u64) -> String {
    match count as f64 {
        count if count >= 999.5e6 => format!("{:.1} B", count / 1e9),
        count => format!("{:.0} M", count / 1e6),
    }
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 999.5e6 => format!("{:.1} GB", bytes / 1e9),
        bytes => format!("{:.0} MB", bytes / 1e6),
    }
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/catalogue.md")
}

#[test]
fn the_page_about_the_catalogue_is_current() {
    let catalog = Catalog::builtin().unwrap();
    let written = fs::read_to_string(file()).unwrap_or_default();
    assert!(
        written == page(&catalog),
        "docs/src/catalogue.md is out of date: run `cargo xtask docs` to write it again"
    );
    for entry in catalog.entries() {
        assert!(KINDS.iter().any(|(kind, _)| *kind == entry.kind), "{} is in no table", entry.name);
    }
}

#[test]
fn documents_state_the_size_of_the_catalogue() {
    let catalog = Catalog::builtin().unwrap();
    let all = catalog.entries().len();
    let tested = catalog.entries().iter().filter(|entry| entry.tested).count();
    let states = |document: &str, expect: &[String]| {
        let words = document.split_whitespace().collect::<Vec<_>>().join(" ");
        expect.iter().all(|text| words.contains(text))
    };
    let other = format!("the other {}, a small model", all - tested);
    let readme = [format!("{all} models. The weights of {tested} of them"), other.clone()];
    assert!(states(include_str!("../../../../README.md"), &readme), "README.md: expected {readme:?}");
    let faq = [format!("The weights of {tested} of {all} models"), other];
    assert!(states(include_str!("../../../../docs/src/faq.md"), &faq), "faq.md: expected {faq:?}");
}

#[test]
fn the_assumed_quality_of_a_scheme_is_the_recorded_one() {
    let record = include_str!("../../../../bench/runs/quality-2026-11-28.md");
    let row = record.lines().find(|row| row.starts_with("| `w4` before | 96 MB | `f32` |")).unwrap();
    let change: f64 = row.split('|').nth(5).unwrap().trim().trim_end_matches(" %").parse().unwrap();
    let assumed = kept_quality(Scheme::W4);
    assert!((assumed - 1.0 / (1.0 + change / 100.0)).abs() < 0.001, "{assumed}: {row}");
}

#[test]
fn a_machine_has_room_for_the_weights_and_the_system() {
    assert_eq!(memory(900 << 20), "2 GB");
    assert_eq!(memory(2 << 30), "4 GB");
    assert_eq!(memory(3 << 30), "4 GB");
    assert_eq!(memory((3 << 30) + 1), "8 GB");
    assert_eq!(memory(300 << 30), "over 256 GB");
}

/// Writes the page; ignored unless requested.
#[test]
#[ignore = "it writes docs/src/catalogue.md"]
fn write_the_page_about_the_catalogue() {
    fs::write(file(), page(&Catalog::builtin().unwrap())).unwrap();
}
