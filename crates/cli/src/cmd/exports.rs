//! `narthex import` and `export`.

use narthex_gateway::{ExportFormat, ExportRequest, Gateway, ImportRequest};

use crate::{
    args::{ExportArgs, ImportArgs},
    bars::Bars,
    interrupt, output, render,
};

/// Imports an export as a package.
pub(crate) fn import(gateway: &Gateway, args: ImportArgs) -> anyhow::Result<()> {
    let ImportArgs { path, name, file, pooling } = args;
    let request = ImportRequest { path, name, file, pooling };
    let bars = Bars::new();
    let (folder, manifest) = gateway.import(&request, &bars, interrupt::cancel())?;
    let bytes = manifest.bytes();
    output::note(format!(
        "imported {} ({}, {}, up to {} tokens){}",
        manifest.name,
        manifest.recipe.scheme,
        render::bytes(bytes),
        manifest.max_length,
        bars.took()
    ));
    output::line(folder.display())
}

/// Exports a model for another runtime.
pub(crate) fn export(gateway: &Gateway, args: ExportArgs) -> anyhow::Result<()> {
    let ExportArgs { model, format, package, group, out } = args;
    let format = if package { ExportFormat::Package } else { format.into() };
    let request = ExportRequest { model, format, group, out };
    gateway.export(&request, &Bars::new(), interrupt::cancel())?;
    output::note(format!("exported {}", request.model));
    output::line(request.out.display())
}
