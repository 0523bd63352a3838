//! `narthex import`.

use narthex_gateway::{Gateway, ImportRequest};

use crate::{args::ImportArgs, bars::Bars, interrupt, output, render};

/// Makes a package of an export.
pub(crate) fn import(gateway: &Gateway, args: ImportArgs) -> anyhow::Result<()> {
    let request = ImportRequest { path: args.path, name: args.name, file: args.file };
    let (folder, manifest) = gateway.import(&request, &Bars::new(), interrupt::cancel())?;
    let bytes = manifest.files.values().map(|file| file.bytes).sum();
    output::note(format!(
        "imported {} ({}, {}, up to {} tokens)",
        manifest.name,
        manifest.recipe.scheme,
        render::bytes(bytes),
        manifest.max_length
    ));
    output::line(folder.display())
}
