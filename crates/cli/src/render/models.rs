//! Installed models and the catalogue.

use comfy_table::{Cell, ContentArrangement};
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

/// Width of the catalogue.
const COLUMNS: u16 = 80;

/// Renders the catalogue in the given order, within 80 columns.
pub(crate) fn catalogue(models: &[RankedModel]) -> String {
    let mut table = table(&["MODEL", "KIND", "SIZE", "HERE", "SPEED", "QUALITY", "STATE"]);
    // The few longer names are wrapped to two lines.
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
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
        let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            Cell::new(&model.name),
            Cell::new(model.kind.as_str()),
            right(shown(here.map(|here| bytes(here.bytes)))),
            Cell::new(shown(here.as_ref().map(|here| fit(here).to_owned()))),
            Cell::new(shown(here.as_ref().map(|here| speed(here).to_owned()))),
            right(shown(here.map(|here| format!("{:.0} %", here.quality * 100.0)))),
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
