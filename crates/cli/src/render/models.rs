//! Installed models and the catalogue.

use std::{collections::BTreeMap, iter};

use comfy_table::{Cell, ContentArrangement};
use console::Term;
use narthex_gateway::{
    models::{Access, DiskUsage, ModelKind, ModelListing, Purpose, Removal},
    plan::{RankedModel, SpeedClass, Suitability},
};
use narthex_spec::{MediaKind, Scheme};

use super::{PIPED_COLUMNS, bytes, right, table};

/// Number of bytes from which the files that a machine made from a package are shown. Records alone are smaller.
const SHOWN_BYTES: u64 = 100_000;

/// Returns the bytes of the files that this machine made from a package, unless they are only records.
pub(super) fn machine_bytes(bytes: u64) -> u64 {
    if bytes < SHOWN_BYTES { 0 } else { bytes }
}

/// Renders installed models. The bytes of a checkpoint in the store are counted with the first package of its model.
pub(crate) fn installed(models: &[ModelListing], checkpoints: &BTreeMap<String, u64>) -> String {
    let mut columns = vec!["MODEL", "KIND", "SCHEME", "SIZE", "ON DISK", "CONTEXT"];
    let mut packages = models.iter().flat_map(|model| &model.installed);
    let any_bound = packages.any(|package| package.bound.is_some());
    columns.extend(any_bound.then_some("RUNS ON"));
    let mut table = table(&columns);
    for model in models {
        for (index, package) in model.installed.iter().enumerate() {
            let checkpoint = checkpoints.get(model.name.as_str()).filter(|_| index == 0).unwrap_or(&0);
            let on_disk = package.bytes + machine_bytes(package.machine_bytes) + checkpoint;
            let bound = package.bound.as_ref().map_or("", |bound| bound.device.as_str());
            let cells = [
                Cell::new(&model.name),
                Cell::new(kind(model.kind, &package.reads)),
                Cell::new(package.scheme),
                right(bytes(package.bytes)),
                right(bytes(on_disk)),
                right(package.context_length),
            ];
            table.add_row(cells.into_iter().chain(any_bound.then(|| Cell::new(bound))));
        }
    }
    table.trim_fmt()
}

/// Renders the kind of a model with the media that it reads in conversations: `chat, vision`.
pub(super) fn kind(kind: ModelKind, reads: &[MediaKind]) -> String {
    let media = reads.iter().map(|kind| kind.capability());
    iter::once(kind.as_str()).chain(media).collect::<Vec<_>>().join(", ")
}

/// Renders the space that a store takes.
pub(crate) fn disk_usage(usage: &DiskUsage) -> String {
    let DiskUsage { folder, store, hub_cache, hub_cache_bytes } = usage;
    let mut table = table(&["SIZE", "PART"]);
    for package in &store.packages {
        let id = format!("{}@{}", package.name, package.scheme);
        table.add_row([right(bytes(package.bytes)), Cell::new(format!("{id}, the package"))]);
        if machine_bytes(package.machine_bytes) > 0 {
            let part = format!("{id}, packed weights and other files of this machine");
            table.add_row([right(bytes(package.machine_bytes)), Cell::new(part)]);
        }
    }

    for checkpoint in &store.checkpoints {
        let state = if checkpoint.installed { "" } else { ", which is not installed" };
        let part = format!("checkpoint of {}{state}", checkpoint.made_for);
        table.add_row([right(bytes(checkpoint.bytes)), Cell::new(part)]);
    }

    for (size, part) in [
        (store.runtimes, "runtimes".to_owned()),
        (store.leftovers, "leftovers, which `narthex prune` removes".to_owned()),
        (store.total, format!("together in {}", folder.display())),
        (*hub_cache_bytes, format!("the hub's cache, shared with other programs: {}", hub_cache.display())),
    ] {
        if size > 0 {
            table.add_row([right(bytes(size)), Cell::new(part)]);
        }
    }
    table.trim_fmt()
}

/// Renders the parts that a removal deletes: `tiny (w8, w4) and its checkpoint`.
pub(crate) fn removal(removal: &Removal) -> String {
    let schemes: Vec<&str> = removal.schemes.iter().map(|scheme| scheme.as_str()).collect();
    let checkpoint = if removal.checkpoint { " and its checkpoint" } else { "" };
    format!("{} ({}){checkpoint}", removal.name, schemes.join(", "))
}

/// Meaning of the catalogue's columns.
pub(crate) const CATALOGUE_LEGEND: &str = "Models are sorted by their usefulness on this machine; gated ones, whose \
    publishers ask to accept a licence, are last. HERE is the best scheme for this machine. SIZE, SPEED and QUALITY are \
    those of that scheme. QUALITY is the share of the f32 quality that it keeps, where it was measured.";

/// Renders the catalogue as tables: the first choices that fit this machine by purpose, and the other models in the order
/// of `models`, with gated ones at the end.
pub(crate) fn catalogue(models: &[RankedModel]) -> String {
    let columns = Term::stdout().size_checked().map(|(_, columns)| columns.max(PIPED_COLUMNS).into());
    catalogue_within(models, columns)
}

fn catalogue_within(models: &[RankedModel], columns: Option<usize>) -> String {
    let (mut choices, mut others): (Vec<&RankedModel>, Vec<&RankedModel>) = models
        .iter()
        .partition(|ranked| ranked.model.pick.is_some() && ranked.here.is_some_and(|here| here.fits));
    choices.sort_by_key(|ranked| ranked.model.pick);
    others.sort_by_key(|ranked| ranked.model.access == Access::Gated);
    let mut tables = Vec::new();
    if !choices.is_empty() {
        let table = models_within(&choices, columns, "FOR", |model| {
            model.pick.map_or("", Purpose::as_str).to_owned()
        });
        tables.push(format!("First choices\n{table}"));
    }
    if !others.is_empty() || choices.is_empty() {
        let title = if choices.is_empty() { "" } else { "Other models\n" };
        let table = models_within(&others, columns, "KIND", |model| kind(model.kind, &model.reads));
        tables.push(format!("{title}{table}"));
    }
    tables.join("\n\n")
}

/// Renders models within a number of columns, if it is limited. The first column after the name is called `label`. A name
/// that is too long for its column has a line of its own, so that it can be copied.
fn models_within(
    models: &[&RankedModel],
    columns: Option<usize>,
    label: &str,
    value: fn(&ModelListing) -> String,
) -> String {
    let figures = catalogue_figures(models, label, value);
    let names = iter::once("MODEL").chain(models.iter().map(|ranked| ranked.model.name.as_str()));
    let widest = figures.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(widest + 2));
    let width = names.clone().map(str::len).filter(|length| *length <= room).max().unwrap_or(0);
    let rows = names.zip(figures.lines()).map(|(name, figures)| match name.len() > width {
        true => format!(" {name}\n {:width$} {figures}", ""),
        false => format!(" {name:width$} {figures}"),
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// Renders the columns after the names, in one line for each model.
fn catalogue_figures(models: &[&RankedModel], label: &str, value: fn(&ModelListing) -> String) -> String {
    let mut table = table(&[label, "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
    table.set_content_arrangement(ContentArrangement::Disabled);
    for RankedModel { model, here } in models {
        let size = here.map_or_else(|| "-".to_owned(), |here| bytes(here.bytes));
        let scheme = here.map_or("-", |here| if here.fits { here.scheme.as_str() } else { "no" });
        let quality = here.and_then(|here| here.quality);
        let quality = quality.map_or_else(|| "-".to_owned(), |quality| format!("{:.0} %", quality * 100.0));
        table.add_row([
            Cell::new(value(model)),
            right(size),
            Cell::new(scheme),
            Cell::new(here.as_ref().map_or("-", speed)),
            right(quality),
            Cell::new(state(model, here.as_ref())),
        ]);
    }
    table.trim_fmt()
}

fn speed(here: &Suitability) -> &'static str {
    match here.speed {
        _ if !here.fits => "-",
        SpeedClass::Fast => "fast",
        SpeedClass::Medium => "medium",
        SpeedClass::Slow => "slow",
    }
}

/// Returns whether a model is installed in the scheme that is shown, or else in which ones it is, or else whether it can
/// be downloaded.
fn state(model: &ModelListing, here: Option<&Suitability>) -> String {
    let schemes: Vec<Scheme> = model.installed.iter().map(|package| package.scheme).collect();
    match model.access {
        _ if here.is_some_and(|here| !schemes.is_empty() && !schemes.contains(&here.scheme)) => {
            let schemes: Vec<&str> = schemes.into_iter().map(Scheme::as_str).collect();
            format!("{} installed", schemes.join(", "))
        }
        _ if !schemes.is_empty() => "installed".to_owned(),
        Access::Gated => "gated".to_owned(),
        Access::Open => "available".to_owned(),
    }
}

/// Returns the steps before a model can be downloaded.
pub(super) fn access(access: Access) -> Option<&'static str> {
    match access {
        Access::Open => None,
        Access::Gated => {
            Some("gated; accept its licence on the model's page, and set HF_TOKEN to a token of that account")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use narthex_gateway::models::{Figures, InstalledPackage};
    use narthex_spec::Sha256;

    use super::*;

    fn here(bytes: u64, fits: bool, measured: bool) -> Suitability {
        let (scheme, speed, quality) = (Scheme::W4, SpeedClass::Medium, measured.then_some(0.877));
        Suitability { scheme, bytes, fits, speed, quality, score: 0.0 }
    }

    fn ranked(name: &str, here: Option<Suitability>, access: Access) -> RankedModel {
        let figures = Figures { w8: 0, w4: 0, score: 100.0, scheme: Scheme::W8, runs: true };
        let model = ModelListing {
            name: name.parse().unwrap(),
            kind: ModelKind::Chat,
            reads: Vec::new(),
            title: String::new(),
            parameters: None,
            download_bytes: None,
            figures: Some(figures),
            license: None,
            quality: None,
            access,
            pick: None,
            notes: None,
            source: String::new(),
            installed: Vec::new(),
            auto_pull: false,
        };
        RankedModel { model, here }
    }

    #[test]
    fn models_that_see_are_marked() {
        let mut model = ranked("gemma3:4b", Some(here(2_500_000_000, true, true)), Access::Open);
        model.model.reads = vec![MediaKind::Image];
        let text = catalogue_within(&[model], None);
        assert_eq!(rows(&text)[1][..3], ["gemma3:4b", "chat,", "vision"], "{text}");
    }

    fn models() -> [RankedModel; 3] {
        [
            ranked("qwen3:4b", Some(here(2_500_000_000, true, true)), Access::Open),
            ranked("llama3.3:70b", Some(here(43_000_000_000, false, false)), Access::Gated),
            ranked("paraphrase-multilingual-minilm-l12-v2", None, Access::Open),
        ]
    }

    fn rows(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn the_catalogue_shows_fit_speed_and_quality() {
        let text = catalogue_within(&models(), None);
        let rows = rows(&text);
        assert_eq!(rows[0], ["MODEL", "KIND", "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
        assert_eq!(rows[1], ["qwen3:4b", "chat", "2.5", "GB", "w4", "medium", "88", "%", "available"]);
        assert_eq!(rows[3], ["llama3.3:70b", "chat", "43", "GB", "no", "-", "-", "gated"]);
        let name = "paraphrase-multilingual-minilm-l12-v2";
        assert_eq!(rows[2], [name, "chat", "-", "-", "-", "-", "available"]);
    }

    #[test]
    fn a_long_name_stays_whole_within_80_columns() {
        let text = catalogue_within(&models(), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let rows = rows(&text);
        assert_eq!(rows[2], ["paraphrase-multilingual-minilm-l12-v2"]);
        assert_eq!(rows[3], ["chat", "-", "-", "-", "-", "available"]);
        assert_eq!(rows[4][0], "llama3.3:70b");
        let column = |line: usize, text_in: &str| text.lines().nth(line).unwrap().find(text_in);
        assert_eq!(column(3, "chat"), column(0, "KIND"), "{text}");
    }

    #[test]
    fn first_choices_that_fit_are_listed_by_purpose_before_the_others() {
        let fitting = Some(here(1, true, true));
        let pick = |name: &str, pick, here| {
            let mut ranked = ranked(name, here, Access::Open);
            ranked.model.pick = pick;
            ranked
        };
        let models = [
            pick("plain:1b", None, fitting),
            pick("small:1b", Some(Purpose::Small), fitting),
            pick("chat:4b", Some(Purpose::Chat), fitting),
            pick("large:9b", Some(Purpose::Chat), Some(here(1, false, true))),
        ];
        let text = catalogue_within(&models, None);
        let first: Vec<&str> = rows(&text).into_iter().filter_map(|row| row.first().copied()).collect();
        let expect = ["First", "MODEL", "chat:4b", "small:1b", "Other", "MODEL", "plain:1b", "large:9b"];
        assert_eq!(first, expect, "{text}");
        assert!(text.contains("FOR") && text.contains("KIND"), "{text}");
    }

    fn package(scheme: Scheme, bytes: u64) -> InstalledPackage {
        InstalledPackage {
            scheme,
            bytes,
            machine_bytes: bytes / 2,
            max_length: 0,
            context_length: 0,
            kv_cache: None,
            bound: None,
            reads: Vec::new(),
            reasons: false,
            sampling: Default::default(),
            created: SystemTime::UNIX_EPOCH,
            digest: Sha256([0; 32]),
        }
    }

    #[test]
    fn the_checkpoint_is_counted_once_with_the_packages() {
        let mut model = ranked("tiny", None, Access::Open).model;
        model.installed = vec![package(Scheme::W8, 100_000_000), package(Scheme::W4, 60_000_000)];
        let sizes = |checkpoints: &BTreeMap<String, u64>| {
            let text = installed(std::slice::from_ref(&model), checkpoints);
            let sizes = rows(&text).into_iter().skip(1).map(|row| row[3..7].join(" "));
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(sizes(&BTreeMap::new()), ["100 MB 150 MB", "60 MB 90 MB"]);
        let checkpoints = BTreeMap::from([("tiny".to_owned(), 500_000_000)]);
        assert_eq!(sizes(&checkpoints), ["100 MB 650 MB", "60 MB 90 MB"]);
    }

    #[test]
    fn a_model_in_another_scheme_is_not_shown_as_installed() {
        let check = |schemes: &[Scheme], here: Option<Suitability>, expect: &str| {
            let mut ranked = ranked("qwen3:4b", here, Access::Open);
            ranked.model.installed.extend(schemes.iter().map(|&scheme| package(scheme, 0)));
            assert_eq!(state(&ranked.model, ranked.here.as_ref()), expect);
        };
        let in_w4 = Some(here(0, true, true));
        check(&[], in_w4, "available");
        check(&[Scheme::W8], in_w4, "w8 installed");
        check(&[Scheme::W8, Scheme::F16], in_w4, "w8, f16 installed");
        check(&[Scheme::W8, Scheme::W4], in_w4, "installed");
        check(&[Scheme::F32], None, "installed");
    }
}
