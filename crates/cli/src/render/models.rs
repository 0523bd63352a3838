//! Installed models and the catalogue.

use std::iter;

use comfy_table::{Cell, ContentArrangement};
use console::Term;
use narthex_gateway::{
    models::{Access, ModelListing, Removal},
    plan::{RankedModel, SpeedClass, Suitability},
};
use narthex_spec::Scheme;

use super::{PIPED_COLUMNS, bytes, right, table};

/// Renders installed models.
pub(crate) fn installed(models: &[ModelListing]) -> String {
    let mut columns = vec!["MODEL", "KIND", "SCHEME", "SIZE", "CONTEXT"];
    let mut packages = models.iter().flat_map(|model| &model.installed);
    let any_bound = packages.any(|package| package.bound.is_some());
    columns.extend(any_bound.then_some("RUNS ON"));
    let mut table = table(&columns);
    for model in models {
        for package in &model.installed {
            let bound = package.bound.as_ref().map_or("", |bound| bound.device.as_str());
            let cells = [
                Cell::new(&model.name),
                Cell::new(model.kind.as_str()),
                Cell::new(package.scheme),
                right(bytes(package.bytes)),
                right(package.max_length),
            ];
            table.add_row(cells.into_iter().chain(any_bound.then(|| Cell::new(bound))));
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
pub(crate) const CATALOGUE_LEGEND: &str = "The models of each kind are sorted by their usefulness on this machine. HERE \
    is the best scheme for this machine. SIZE, SPEED and QUALITY are those of that scheme. QUALITY is the share of the \
    f32 quality that it keeps; figures with ~ were measured with smollm2:135m instead of the model.";

/// Renders the catalogue as a table, in the order of `models`.
pub(crate) fn catalogue(models: &[RankedModel]) -> String {
    let columns = Term::stdout().size_checked().map(|(_, columns)| columns.max(PIPED_COLUMNS).into());
    catalogue_within(models, columns)
}

/// Renders the catalogue within a number of columns, if it is limited. A name that is too long for its column has a line
/// of its own, so that it can be copied.
fn catalogue_within(models: &[RankedModel], columns: Option<usize>) -> String {
    let figures = catalogue_figures(models);
    let names = || iter::once("MODEL").chain(models.iter().map(|ranked| ranked.model.name.as_str()));
    let widest = figures.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(widest + 2));
    let width = names().map(str::len).filter(|length| *length <= room).max().unwrap_or(0);
    let row = |(name, figures): (&str, &str)| match name.len() > width {
        true => format!(" {name}\n {:width$} {figures}", ""),
        false => format!(" {name:width$} {figures}"),
    };
    names().zip(figures.lines()).map(row).collect::<Vec<_>>().join("\n")
}

/// Renders the columns after the names, in one line for each model.
fn catalogue_figures(models: &[RankedModel]) -> String {
    let mut table = table(&["KIND", "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
    table.set_content_arrangement(ContentArrangement::Disabled);
    for RankedModel { model, here } in models {
        let fit = |here: &Suitability| if here.fits { here.scheme.as_str() } else { "no" };
        let speed = |here: &Suitability| match here.speed {
            _ if !here.fits => "-",
            SpeedClass::Fast => "fast",
            SpeedClass::Medium => "medium",
            SpeedClass::Slow => "slow",
        };
        let quality = |here: &Suitability| {
            format!("{}{:.0} %", if here.measured { "" } else { "~" }, here.quality * 100.0)
        };
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            Cell::new(model.kind.as_str()),
            right(shown(here.map(|here| bytes(here.bytes)))),
            Cell::new(shown(here.as_ref().map(|here| fit(here).to_owned()))),
            Cell::new(shown(here.as_ref().map(|here| speed(here).to_owned()))),
            right(shown(here.as_ref().map(quality))),
            Cell::new(state(model, here.as_ref())),
        ]);
    }
    table.trim_fmt()
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

    use narthex_gateway::models::{Figures, InstalledPackage, ModelKind};
    use narthex_spec::Sha256;

    use super::*;

    fn here(bytes: u64, fits: bool, measured: bool) -> Suitability {
        let (scheme, speed, quality) = (Scheme::W4, SpeedClass::Medium, 0.877);
        Suitability { scheme, bytes, fits, speed, quality, measured, score: 0.0 }
    }

    fn ranked(name: &str, here: Option<Suitability>, access: Access) -> RankedModel {
        let figures = Figures { w8: 0, w4: 0, score: 100.0, scheme: Scheme::W8, runs: true };
        let model = ModelListing {
            name: name.parse().unwrap(),
            kind: ModelKind::Chat,
            title: String::new(),
            parameters: None,
            download_bytes: None,
            figures: Some(figures),
            license: None,
            quality: None,
            access,
            notes: None,
            source: String::new(),
            installed: Vec::new(),
            auto_pull: false,
        };
        RankedModel { model, here }
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
        assert_eq!(rows[2], ["llama3.3:70b", "chat", "43", "GB", "no", "-", "~88", "%", "gated"]);
        let name = "paraphrase-multilingual-minilm-l12-v2";
        assert_eq!(rows[3], [name, "chat", "-", "-", "-", "-", "available"]);
    }

    #[test]
    fn a_long_name_stays_whole_within_80_columns() {
        let text = catalogue_within(&models(), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let rows = rows(&text);
        assert_eq!(rows[2][0], "llama3.3:70b");
        assert_eq!(rows[3], ["paraphrase-multilingual-minilm-l12-v2"]);
        assert_eq!(rows[4], ["chat", "-", "-", "-", "-", "available"]);
        let column = |line: usize, text_in: &str| text.lines().nth(line).unwrap().find(text_in);
        assert_eq!(column(4, "chat"), column(0, "KIND"), "{text}");
    }

    #[test]
    fn a_model_in_another_scheme_is_not_shown_as_installed() {
        let check = |schemes: &[Scheme], here: Option<Suitability>, expect: &str| {
            let mut ranked = ranked("qwen3:4b", here, Access::Open);
            ranked.model.installed.extend(schemes.iter().map(|&scheme| InstalledPackage {
                scheme,
                bytes: 0,
                max_length: 0,
                bound: None,
                created: SystemTime::UNIX_EPOCH,
                digest: Sha256([0; 32]),
            }));
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
