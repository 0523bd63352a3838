//! `narthex import` and `export`.

use narthex_gateway::{ExportRequest, Gateway, ImportRequest};

use crate::{
    args::{ExportArgs, ImportArgs},
    bars::Bars,
    interrupt, output, render,
};

/// Imports an export as a package.
pub(crate) fn import(gateway: &Gateway, args: ImportArgs) -> anyhow::Result<()> {
    let request = ImportRequest { path: args.path, name: args.name, file: args.file };
    let bars = Bars::new();
    let (folder, manifest) = gateway.import(&request, &bars, interrupt::cancel())?;
    let bytes = manifest.files.values().map(|file| file.bytes).sum();
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
    let ExportArgs { model, format, group, out } = args;
    let request = ExportRequest { model, format: format.into(), group, out };
    gateway.export(&request, &Bars::new(), interrupt::cancel())?;
    output::note(format!("exported {}", request.model));
    output::line(request.out.display())
}
