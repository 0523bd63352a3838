//! Installed models and the catalogue.

use comfy_table::Cell;
use narthex_gateway::models::{Access, Figures, ModelListing, Removal};
use narthex_spec::Scheme;

use super::{bytes, count, right, table};

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

/// Renders what a removal removes: `tiny (w8, w4) and its checkpoint`.
pub(crate) fn removal(removal: &Removal) -> String {
    let schemes: Vec<&str> = removal.schemes.iter().map(|scheme| scheme.as_str()).collect();
    let checkpoint = if removal.checkpoint { " and its checkpoint" } else { "" };
    format!("{} ({}){checkpoint}", removal.name, schemes.join(", "))
}

/// Sorts models by NPU score, then by size; models that NPUs refuse come last.
pub(crate) fn rank(models: &mut [ModelListing]) {
    models.sort_by(|a, b| {
        let runs = |model: &ModelListing| model.figures.is_some_and(|figures| figures.runs);
        let score = |model: &ModelListing| model.figures.map_or(-1.0, |figures| figures.score);
        let size = |model: &ModelListing| (model.parameters, model.name.clone());
        (runs(b).cmp(&runs(a))).then(score(b).total_cmp(&score(a))).then_with(|| size(a).cmp(&size(b)))
    });
}

/// Renders the catalogue in the given order.
pub(crate) fn catalogue(models: &[ModelListing]) -> String {
    let columns = ["MODEL", "KIND", "NPU", "PARAMETERS", "DOWNLOAD", "W8", "W4", "LICENCE", "STATE"];
    let mut table = table(&columns);
    for model in models {
        let state = match model.access {
            _ if !model.installed.is_empty() => "installed",
            Access::Gated => "gated",
            Access::Open => "available",
        };
        let size = |size: Option<u64>| right(size.map_or_else(|| "-".to_owned(), bytes));
        let figures = model.figures;
        table.add_row([
            Cell::new(&model.name),
            Cell::new(model.kind.as_str()),
            right(figures.map_or_else(|| "-".to_owned(), npu_score)),
            right(model.parameters.map_or_else(|| "?".to_owned(), count)),
            size(model.download_bytes),
            size(figures.map(|figures| figures.w8)),
            size(figures.map(|figures| figures.w4)),
            Cell::new(model.license.as_deref().unwrap_or("?")),
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

/// Renders a score, with its scheme unless that is w8.
fn npu_score(figures: Figures) -> String {
    match (figures.runs, figures.scheme) {
        (false, _) => "refused".to_owned(),
        (true, Scheme::W8) => format!("{:.1}", figures.score),
        (true, scheme) => format!("{:.1} in {scheme}", figures.score),
    }
}
