//! Installed models and the catalogue.

use comfy_table::Cell;
use narthex_gateway::{
    models::{Access, ModelListing, Removal},
    plan::{RankedModel, SpeedClass, Suitability},
};

use super::{bytes, right, table};

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
pub(crate) const CATALOGUE_LEGEND: &str = "HERE is the best scheme for this machine, and SIZE, SPEED and QUALITY refer \
    to it. QUALITY is the share of the quality in f32 that it keeps; figures with ~ were not measured with the model, \
    but with smollm2:135m.";

/// Renders the catalogue in the given order. A terminal of 80 columns breaks the few longer names.
pub(crate) fn catalogue(models: &[RankedModel]) -> String {
    let mut table = table(&["MODEL", "KIND", "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
    for RankedModel { model, here } in models {
        let state = match model.access {
            _ if !model.installed.is_empty() => "installed",
            Access::Gated => "gated",
            Access::Open => "available",
        };
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
            Cell::new(&model.name),
            Cell::new(model.kind.as_str()),
            right(shown(here.map(|here| bytes(here.bytes)))),
            Cell::new(shown(here.as_ref().map(|here| fit(here).to_owned()))),
            Cell::new(shown(here.as_ref().map(|here| speed(here).to_owned()))),
            right(shown(here.as_ref().map(quality))),
            Cell::new(state),
        ]);
    }
    table.trim_fmt()
}

/// Returns the steps before a model can be downloaded.
pub(super) fn access(access: Access) -> Option<&'static str> {
    match access {
        Access::Open => None,
        Access::Gated => {
            Some("gated: accept its licence on the model's page, and set HF_TOKEN to a token of that account")
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_gateway::models::{Figures, ModelKind};
    use narthex_spec::Scheme;

    use super::*;

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

    #[test]
    fn the_catalogue_shows_fit_speed_and_quality_within_80_columns() {
        let here = |bytes, fits, measured| {
            let (scheme, speed, quality) = (Scheme::W4, SpeedClass::Medium, 0.877);
            Some(Suitability { scheme, bytes, fits, speed, quality, measured, score: 0.0 })
        };
        let models = [
            ranked("qwen3:4b", here(2_500_000_000, true, true), Access::Open),
            ranked("llama3.3:70b", here(43_000_000_000, false, false), Access::Gated),
            ranked("paraphrase-multilingual-minilm-l12-v2", None, Access::Open),
        ];
        let width = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(width(&catalogue(&models[..2])) <= 80);
        // Where the output is not a terminal, a name stays in one piece.
        let text = catalogue(&models);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["MODEL", "KIND", "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
        assert_eq!(rows[1], ["qwen3:4b", "chat", "2.5", "GB", "w4", "medium", "88", "%", "available"]);
        assert_eq!(rows[2], ["llama3.3:70b", "chat", "43", "GB", "no", "-", "~88", "%", "gated"]);
        assert_eq!(
            rows[3],
            ["paraphrase-multilingual-minilm-l12-v2", "chat", "-", "-", "-", "-", "available"]
        );
    }
}
