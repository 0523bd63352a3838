//! What a package holds.

use comfy_table::Cell;
use narthex_gateway::{UnsharedWeights, models::ModelListing};
use narthex_spec::{
    Variant,
    arch::{ImportedEncoder, Structure},
    manifest::{Manifest, Quality},
};

use super::{access, bytes, table};

/// A package in words, with what its listing says besides.
pub(crate) fn manifest(manifest: &Manifest, listing: &ModelListing) -> String {
    let size = manifest.files.values().map(|file| file.bytes).sum();
    let shape = match &manifest.architecture {
        Structure::Decoder(arch) => {
            format!("decoder, {} layers, width {}, vocabulary {}", arch.layers.len(), arch.hidden, arch.vocab)
        }
        Structure::Encoder(arch) => {
            format!("encoder, {} layers, {}, vocabulary {}", arch.layers, arch.gives(), arch.vocab)
        }
        Structure::ImportedDecoder(imported) => {
            let layers = manifest.graphs.first().map_or(0, |graph| graph.kv.len());
            format!("imported decoder, {layers} layers, vocabulary {}", imported.vocab)
        }
        Structure::ImportedEncoder(ImportedEncoder { vocab, width, head }) => {
            format!("imported encoder, {}, vocabulary {vocab}", head.gives(*width))
        }
    };
    let mut lines = vec![
        format!("model        {}", manifest.name),
        format!("structure    {shape}"),
        format!("scheme       {} (block {})", manifest.recipe.scheme, manifest.recipe.block),
        format!("context      {} tokens", manifest.max_length),
        format!("size         {}", bytes(size)),
        format!("source       {}", manifest.provenance.source),
        format!("licence      {}", manifest.provenance.license.as_deref().unwrap_or("not stated")),
        format!("compiled by  {}", manifest.provenance.compiler),
    ];
    let bound = manifest.bound.iter();
    lines.extend(bound.map(|bound| format!("runs on      {} alone: {}", bound.device, bound.holds)));
    lines.extend(access(listing.access).map(|text| format!("access       {text}")));
    lines.extend(listing.notes.iter().map(|notes| format!("note         {notes}")));
    for (name, text) in &manifest.prompts.named {
        let default = if manifest.prompts.default.as_ref() == Some(name) { ", the default" } else { "" };
        lines.push(format!("prompt       {name}{default}: {text:?}"));
    }
    let mut dynamic = manifest.graphs.iter().filter(|graph| graph.variant == Variant::Dynamic);
    // Graphs for other numbers of tokens read the same cache.
    let kv: usize =
        dynamic.next().iter().flat_map(|graph| &graph.kv).map(|layer| layer.bytes_per_token()).sum();
    if kv > 0 {
        lines.insert(5, format!("KV cache     {} per 1000 tokens", bytes(kv as u64 * 1000)));
    }
    if let Some(matformer) = &manifest.recipe.matformer {
        lines.insert(2, format!("cut out as   {matformer}"));
    }
    lines.extend(changes(manifest));
    if !manifest.contexts.is_empty() {
        lines.push(contexts(manifest));
    }
    lines.join("\n")
}

/// What of a model was changed, a line for each, and what that costs.
pub(crate) fn changes(manifest: &Manifest) -> Vec<String> {
    let (recipe, mut lines) = (&manifest.recipe, Vec::new());
    if let Some(dropped) = &recipe.drop_layers {
        let count = dropped.layers().len();
        let all =
            layers(&manifest.architecture).map(|left| format!(" of {}", left + count)).unwrap_or_default();
        lines.push(format!("left out     {count}{all} layers: {dropped}"));
    }
    if let (Some(kept), Structure::Decoder(arch)) = (&recipe.vocabulary, &manifest.architecture) {
        lines.push(format!("gives        {} of {} tokens", kept.tokens, arch.vocab));
    }
    if let Some(found) = &manifest.loss {
        lines.push(format!("loss         {}", quality(found, "beside the whole model")));
    }
    if !recipe.passes.is_empty() {
        let passes: Vec<&str> = recipe.passes.iter().map(|pass| pass.as_str()).collect();
        lines.push(format!("passes       {}", passes.join(", ")));
    }
    if let Some(found) = &manifest.quality {
        lines.push(format!("quality      {}", quality(found, "beside the model without its passes")));
    }
    lines
}

fn layers(structure: &Structure) -> Option<usize> {
    match structure {
        Structure::Decoder(arch) => Some(arch.layers.len()),
        Structure::Encoder(arch) => Some(arch.layers),
        Structure::ImportedDecoder(_) | Structure::ImportedEncoder(_) => None,
    }
}

/// How near a model's answers are to another's.
fn quality(quality: &Quality, beside: &str) -> String {
    match quality {
        Quality::Decoder { positions, divergence, agreement, mass } => {
            let given = match mass {
                Some(mass) => format!(
                    "{:.3} % of its probability is on tokens that are given, over these ",
                    mass * 100.0
                ),
                None => String::new(),
            };
            format!(
                "{beside} the best token is the same {:.1} % of the time, {given}distributions differ by {divergence:.6} \
                 nats ({positions} positions, on the CPU)",
                agreement * 100.0
            )
        }
        Quality::Encoder { texts, cosine } => {
            format!("{beside} the least cosine is {cosine:.6} ({texts} texts, on the CPU)")
        }
    }
}

/// What a package holds for NPUs: where each graph's nodes went, what the compiled files weigh, and what of that several
/// chips cost.
pub(crate) fn contexts(manifest: &Manifest) -> String {
    let mut table = table(&["TARGET", "GRAPH", "NODES", "COMPILER"]);
    for context in &manifest.contexts {
        let nodes = context.placement.nodes.iter().map(|(ep, ops)| {
            let parts = context.placement.subgraphs.get(ep).copied().unwrap_or(0);
            format!(
                "{ep} {} in {parts} part{}",
                ops.values().sum::<usize>(),
                if parts == 1 { "" } else { "s" }
            )
        });
        table.add_row([
            Cell::new(&context.target),
            Cell::new(&context.graph),
            Cell::new(nodes.collect::<Vec<_>>().join(", ")),
            Cell::new(&context.compiler),
        ]);
    }
    let compiled = manifest.files.iter().filter(|(name, _)| name.starts_with("contexts/"));
    let size = bytes(compiled.map(|(_, file)| file.bytes).sum());
    let unshared: String = narthex_gateway::unshared_weights(manifest).iter().map(cost).collect();
    format!("{}\ncompiled files  {size}{unshared}", table.trim_fmt())
}

/// What a target of several chips costs, on a line of its own.
fn cost(UnsharedWeights { target, bytes: found, shared }: &UnsharedWeights) -> String {
    let (found, shared) = (bytes(*found), bytes(*shared));
    format!(
        "\nunshared        {target}: {found} instead of about {shared}, since several chips' graphs cannot share weights"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_chips_say_what_they_cost() {
        let target = "qnn:x-elite,8-elite".parse().unwrap();
        let line = cost(&UnsharedWeights { target, bytes: 46_000_000, shared: 12_300_000 });
        assert!(
            line.starts_with("\nunshared        qnn:x-elite,8-elite: 46 MB instead of about 12 MB, "),
            "{line}"
        );
    }
}
