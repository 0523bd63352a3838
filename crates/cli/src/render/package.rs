//! The contents of a package.

use comfy_table::Cell;
use narthex_gateway::{
    UnsharedWeights,
    models::{InstalledPackage, ModelListing},
};
use narthex_spec::{
    ActivationBits, IntegerActivations, Recipe, RoundingMethod, ScalingMethod, Variant,
    adapter::MergedAdapter,
    arch::{EncoderHead, ImportedEncoder, ImportedTranscriber, Structure},
    manifest::{
        Certificate, CertificateFigures, LayerWidth, Manifest, PairTemplate, Prompts, Quality, SourceWeights,
    },
};

use super::{
    bytes,
    models::{access, machine_bytes},
    table,
};

/// Maximum number of layers whose loss is shown.
const LOSSY_LAYERS: usize = 3;

/// Renders a package and its catalogue entry, with the bytes of the model's checkpoint in the store.
pub(crate) fn manifest(manifest: &Manifest, listing: &ModelListing, checkpoint: Option<u64>) -> String {
    let size = manifest.bytes();
    let package = listing.installed.iter().find(|package| package.scheme == manifest.recipe.scheme);
    let mut lines = vec![
        format!("model        {}", manifest.name),
        format!("structure    {}", structure(manifest)),
        format!(
            "scheme       {} (block {}){}",
            manifest.recipe.scheme,
            manifest.recipe.block,
            source_weights(&manifest.source_weights)
        ),
        format!("context      {}", context(manifest, package)),
        format!("size         {}{}", bytes(size), on_disk(package, checkpoint)),
        format!("source       {}", manifest.provenance.source),
        format!("licence      {}", manifest.provenance.license.as_deref().unwrap_or("not stated")),
        format!("compiled by  {}", manifest.provenance.compiler),
    ];

    let bound = manifest.bound.iter();
    lines.extend(bound.map(|bound| format!("runs on      {} only: {}", bound.device, bound.holds)));
    lines.extend(access(listing.access).map(|text| format!("access       {text}")));
    lines.extend(listing.notes.iter().map(|notes| format!("note         {notes}")));
    if !manifest.sampling.is_empty() {
        let values: Vec<String> =
            manifest.sampling.stated().map(|(name, value)| format!("{name} {value}")).collect();
        lines.push(format!("sampling     {}, by its publisher", values.join(", ")));
    }
    lines.extend(texts(manifest));

    let mut dynamic = manifest.graphs.iter().filter(|graph| graph.variant == Variant::Dynamic);
    // Graphs for other numbers of tokens use the same KV cache.
    let layers = dynamic.next().map(|graph| &graph.kv[..]).unwrap_or_default();
    let kv: usize = layers.iter().map(|layer| layer.bytes_per_token()).sum();
    let state: usize =
        layers.iter().filter_map(|layer| layer.recurrent_state()).map(|state| state.bytes()).sum();
    if state > 0 {
        lines.insert(5, format!("state        {} per conversation and checkpoint", bytes(state as u64)));
    }
    if kv > 0 {
        let here = package.and_then(|package| package.kv_cache);
        let here = here.map(|kv_cache| format!("; on this CPU in {kv_cache}")).unwrap_or_default();
        lines.insert(5, format!("KV cache     {} per 1000 tokens in f32{here}", bytes(kv as u64 * 1000)));
    }
    if let Structure::Decoder(arch) = &manifest.architecture {
        let vision = arch.vision.as_ref().map(|tower| ("vision", tower.describe()));
        let audio = arch.audio.as_ref().map(|tower| ("audio", tower.describe()));
        for (name, structure) in audio.into_iter().chain(vision) {
            lines.insert(2, format!("{name:<12} {structure}, on the CPU"));
        }
    }
    if let Some(classifier) = &manifest.classifier {
        lines.insert(2, format!("labels       {}", labels(&classifier.labels)));
    }
    if let Some(text) = pooling(&manifest.architecture) {
        lines.insert(2, format!("pooling      {text}"));
    }
    for MergedAdapter { name, scale, .. } in manifest.recipe.adapters.iter().rev() {
        lines.insert(2, format!("adapter      {name}, factor {scale}"));
    }
    if let Some(matformer) = &manifest.recipe.matformer {
        lines.insert(2, format!("submodel     {matformer}"));
    }
    if let Some(factor) = manifest.recipe.yarn {
        lines.insert(2, format!("yarn         context extended by {factor}"));
    }
    if manifest.recipe.rounding == RoundingMethod::Gptq {
        lines.push("rounding     4-bit weights by GPTQ".to_owned());
    }
    match manifest.recipe.scaling {
        ScalingMethod::Powers => {}
        ScalingMethod::None => lines.push("scaling      none".to_owned()),
        ScalingMethod::Smooth => lines.push("scaling      channels by SmoothQuant".to_owned()),
        ScalingMethod::Awq => lines.push("scaling      channels by AWQ".to_owned()),
    }
    lines.extend(widths(manifest));
    lines.extend(activations(&manifest.recipe));
    lines.extend(changes(manifest));
    lines.extend(certificate(manifest));
    if !manifest.contexts.is_empty() {
        lines.push(contexts(manifest));
    }
    lines.join("\n")
}

/// Renders how many layers have 8 bits, and which layers lose most in 4.
fn widths(manifest: &Manifest) -> Vec<String> {
    let layers = &manifest.layer_widths;
    let mut lines = Vec::new();
    let wide = layers.iter().filter(|layer| layer.is_wide()).count();
    if wide > 0 {
        let source = match (&manifest.recipe.budget, &manifest.recipe.plan) {
            (Some(budget), _) => format!(", by --budget {budget}"),
            (None, Some(plan)) => format!(", by the plan {plan}"),
            (None, None) => String::new(),
        };
        lines.push(format!("widths       {wide} of {} layers have 8 bits{source}", layers.len()));
    }
    let lossiest: Vec<String> = LayerWidth::lossiest(layers, LOSSY_LAYERS)
        .map(|(path, loss)| format!("{path} {:.1} %", loss * 100.0))
        .collect();
    if !lossiest.is_empty() {
        lines.push(format!("4-bit loss   at most {} of a layer's outputs", lossiest.join(", ")));
    }
    lines
}

/// Describes the structure of a model.
fn structure(manifest: &Manifest) -> String {
    match &manifest.architecture {
        Structure::Decoder(arch) => {
            format!("decoder, {} layers, width {}, vocabulary {}", arch.layers.len(), arch.hidden, arch.vocab)
        }
        Structure::Encoder(arch) => {
            format!("encoder, {} layers, {}, vocabulary {}", arch.layers, arch.gives(), arch.vocab)
        }
        Structure::Embedder(arch) => {
            let layers = arch.decoder.layers.len();
            let output = arch.head.gives(arch.width());
            format!("{}, {layers} layers, {output}, vocabulary {}", arch.kind(), arch.decoder.vocab)
        }
        Structure::Speech(arch) => format!(
            "speech recognition, {} and {} layers, width {}, {} mel bands, vocabulary {}",
            arch.encoder.layers, arch.decoder.layers, arch.hidden, arch.bins, arch.vocab
        ),
        Structure::ImportedDecoder(imported) => {
            let layers = manifest.graphs.first().map_or(0, |graph| graph.kv.len());
            format!("imported decoder, {layers} layers, vocabulary {}", imported.vocab)
        }
        Structure::ImportedEncoder(ImportedEncoder { vocab, width, head, .. }) => {
            format!("imported encoder, {}, vocabulary {vocab}", head.gives(*width))
        }
        Structure::ImportedVoice(voice) => {
            let speakers = manifest.voice.as_ref().map_or(0, |voice| voice.speakers.len());
            let plural = if speakers == 1 { "" } else { "s" };
            format!("imported voice, {speakers} speaker{plural}, {} Hz", voice.sample_rate)
        }
        Structure::ImportedTranscriber(ImportedTranscriber { vocab, family }) => {
            format!("imported speech recognition, {}, vocabulary {vocab}", family.title())
        }
    }
}

/// Renders the context of a model, and the one that the KV budget allows.
fn context(manifest: &Manifest, package: Option<&InstalledPackage>) -> String {
    match package.map_or(manifest.max_length, |package| package.context_length) {
        context if context < manifest.max_length => format!(
            "{context} of {} tokens, as many as the default KV budget of this machine holds; --kv-budget changes it",
            manifest.max_length
        ),
        context => format!("{context} tokens"),
    }
}

/// Renders which linear weights have the precision of the checkpoint.
fn source_weights(weights: &[SourceWeights]) -> String {
    if weights.is_empty() {
        return String::new();
    }
    let parts = weights.iter().map(|SourceWeights { encoding, bits, copied, tensors }| {
        let rounded = if *copied { "" } else { ", rounded" };
        format!("{tensors} tensors {encoding} in {bits} bits{rounded}")
    });
    format!(", as in its checkpoint: {}", parts.collect::<Vec<_>>().join("; "))
}

/// Maximum number of labels that are listed.
const LISTED_LABELS: usize = 12;

/// Renders the texts that a model reads beside its inputs: prompts, and the template of pairs.
fn texts(manifest: &Manifest) -> Vec<String> {
    let Prompts { named, default } = &manifest.prompts;
    let prompts = named.iter().map(|(name, text)| {
        let default = if default.as_ref() == Some(name) { ", the default" } else { "" };
        format!("prompt       {name}{default}: {text:?}")
    });
    let pairs = manifest.pairs.as_ref().map(|PairTemplate { first, second, .. }| {
        format!("pairs        {first:?}, the query, {second:?}, the document")
    });
    prompts.chain(pairs).collect()
}

/// Renders the names of a classifier's labels.
fn labels(names: &[String]) -> String {
    let listed = names.iter().take(LISTED_LABELS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED_LABELS) {
        0 => listed,
        rest => format!("{listed} and {rest} more"),
    }
}

/// Renders how an embedding model makes one vector of a text's rows.
fn pooling(structure: &Structure) -> Option<String> {
    if let Structure::ImportedEncoder(ImportedEncoder { pooled_by_graph: true, .. }) = structure {
        return Some("in the imported graph".to_owned());
    }
    match structure.head()? {
        EncoderHead::Embedding { pooling, normalize: true } => {
            Some(format!("{pooling}, scaled to unit length"))
        }
        EncoderHead::Embedding { pooling, normalize: false } => Some(pooling.to_string()),
        EncoderHead::Score { .. }
        | EncoderHead::Spans {}
        | EncoderHead::Tokens { .. }
        | EncoderHead::MaskedLm { .. } => None,
    }
}

/// Renders the bytes of a package's other files on this machine, and those of the model's checkpoint in the store.
fn on_disk(package: Option<&InstalledPackage>, checkpoint: Option<u64>) -> String {
    let machine = package.map_or(0, |package| machine_bytes(package.machine_bytes));
    let machine = (machine > 0).then(|| format!("{} of packed weights and other files", bytes(machine)));
    let checkpoint = checkpoint.map(|checkpoint| format!("{} of its checkpoint", bytes(checkpoint)));
    let parts: Vec<String> = machine.into_iter().chain(checkpoint).collect();
    if parts.is_empty() { String::new() } else { format!(", and {} on this machine", parts.join(" and ")) }
}

/// Renders each change to a model, and the loss.
pub(crate) fn changes(manifest: &Manifest) -> Vec<String> {
    let recipe = &manifest.recipe;
    let mut lines = Vec::new();
    if let Some(dropped) = &recipe.drop_layers {
        let count = dropped.layers().len();
        let all =
            layers(&manifest.architecture).map(|left| format!(" of {}", left + count)).unwrap_or_default();
        lines.push(format!("dropped      {count}{all} layers: {dropped}"));
    }
    if let (Some(kept), Structure::Decoder(arch)) = (&recipe.vocabulary, &manifest.architecture) {
        lines.push(format!("vocabulary   {} of {} tokens", kept.tokens, arch.vocab));
    }
    if let Some(found) = &manifest.loss {
        lines.push(format!("loss         {}", quality(found, "compared with the whole model")));
    }
    if !recipe.passes.is_empty() {
        let passes: Vec<&str> = recipe.passes.iter().map(|pass| pass.as_str()).collect();
        lines.push(format!("passes       {}", passes.join(", ")));
    }
    if let Some(found) = &manifest.quality {
        lines.push(format!("quality      {}", quality(found, "compared with the model without passes")));
    }
    lines
}

/// Renders the integers of activations, and the graphs that have them.
fn activations(recipe: &Recipe) -> Option<String> {
    let IntegerActivations { bits, ranges } = recipe.activations?;
    let bits = match bits {
        ActivationBits::Eight => "8 bits, or 16 where 8 lose much,",
        ActivationBits::Sixteen => "16 bits",
    };
    let weights = recipe.scheme.of_weights();
    Some(format!(
        "activations  {bits} in the graphs for NPUs (ranges: {ranges}); other devices compute as in {weights}"
    ))
}

/// Renders the measured loss of a quantised model.
pub(crate) fn certificate(manifest: &Manifest) -> Option<String> {
    let Certificate { figures, variant, date, accepted_loss, .. } = manifest.certificate.as_ref()?;
    let graphs = if *variant == Variant::Static { "graphs for NPUs " } else { "" };
    let accepted = if *accepted_loss { ", above its bound and accepted" } else { "" };
    let figures = match *figures {
        CertificateFigures::Decoder {
            positions,
            perplexity,
            reference_perplexity,
            divergence,
            agreement,
        } => {
            format!(
                "perplexity {perplexity:.3} instead of {reference_perplexity:.3} ({}), same best token at {:.1} % of \
                 {positions} positions, {divergence:.4} nats",
                perplexity_change(figures),
                agreement * 100.0
            )
        }
        CertificateFigures::Encoder { texts, mean_cosine, lowest_cosine } => {
            format!("mean cosine {mean_cosine:.5}, lowest {lowest_cosine:.5} ({texts} texts)")
        }
    };
    Some(format!("certificate  {graphs}compared with f32: {figures}, on the CPU, {date}{accepted}"))
}

/// Renders the relative change of a decoder's perplexity.
pub(super) fn perplexity_change(figures: &CertificateFigures) -> String {
    figures.perplexity_change().map_or_else(String::new, |change| format!("{:+.2} %", change * 100.0))
}

fn layers(structure: &Structure) -> Option<usize> {
    match structure {
        Structure::Decoder(arch) => Some(arch.layers.len()),
        Structure::Encoder(arch) => Some(arch.layers),
        Structure::Embedder(arch) => Some(arch.decoder.layers.len()),
        Structure::Speech(arch) => Some(arch.encoder.layers + arch.decoder.layers),
        Structure::ImportedDecoder(_)
        | Structure::ImportedEncoder(_)
        | Structure::ImportedVoice(_)
        | Structure::ImportedTranscriber(_) => None,
    }
}

/// Renders the agreement of a model with a reference.
fn quality(quality: &Quality, reference: &str) -> String {
    match quality {
        Quality::Decoder { positions, divergence, agreement, mass } => {
            let given = match mass {
                Some(mass) => {
                    format!("{:.3} % of its probability is on kept tokens, over these ", mass * 100.0)
                }
                None => String::new(),
            };
            format!(
                "{reference}: same best token at {:.1} % of positions, {given}distributions differ by {divergence:.6} \
                 nats ({positions} positions, on the CPU)",
                agreement * 100.0
            )
        }
        Quality::Encoder { texts, cosine } => {
            format!("{reference}: lowest cosine {cosine:.6} ({texts} texts, on the CPU)")
        }
    }
}

/// Renders the compiled contexts of a package: the placement of each graph's nodes and the size of the files.
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

/// Renders the extra size of a target with several chips.
fn cost(weights: &UnsharedWeights) -> String {
    format!(
        "\nunshared        {}: {} instead of about {}, because graphs for several chips cannot share weights",
        weights.target,
        bytes(weights.bytes),
        bytes(weights.shared)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_model_includes_its_checkpoint() {
        assert_eq!(on_disk(None, None), "");
        assert_eq!(on_disk(None, Some(5_000_000)), ", and 5.0 MB of its checkpoint on this machine");
    }

    #[test]
    fn the_extra_size_of_several_chips_is_listed() {
        let target = "qnn:x-elite,8-elite".parse().unwrap();
        let line = cost(&UnsharedWeights { target, bytes: 46_000_000, shared: 12_300_000 });
        assert!(
            line.starts_with("\nunshared        qnn:x-elite,8-elite: 46 MB instead of about 12 MB, "),
            "{line}"
        );
    }
}
