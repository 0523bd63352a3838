//! Layers of the crates, and libraries that only some crates may use.
//!
//! Dependencies of tests are not checked: they reach no user, and Cargo itself refuses cycles.

use xtask_workspace::workspace::{DependencyKind, Package};

use crate::finding::{Finding, Rule};

/// Layer of a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// Part of the product; depends only on strictly lower numbers.
    Product(u8),
    /// Part of the development tools. No part of the product depends on it.
    Development,
}

/// The layers, from the top down, as ARCHITECTURE.md draws them.
const LAYERS: &[(&str, Layer)] = &[
    ("narthex", Layer::Product(6)),
    ("narthex-server", Layer::Product(5)),
    ("narthex-mcp", Layer::Product(5)),
    ("narthex-gateway", Layer::Product(4)),
    ("narthex-compile", Layer::Product(3)),
    ("narthex-check", Layer::Product(3)),
    ("narthex-device", Layer::Product(3)),
    ("narthex-checkpoint", Layer::Product(2)),
    ("narthex-graph", Layer::Product(1)),
    ("narthex-text", Layer::Product(1)),
    ("narthex-engine", Layer::Product(1)),
    ("narthex-catalog", Layer::Product(1)),
    ("narthex-kernels", Layer::Product(1)),
    ("narthex-audio", Layer::Product(1)),
    ("narthex-image", Layer::Product(1)),
    ("narthex-speech", Layer::Product(1)),
    ("narthex-spec", Layer::Product(0)),
    ("narthex-files", Layer::Product(0)),
    ("narthex-testkit", Layer::Development),
    ("xtask", Layer::Development),
    ("xtask-peers", Layer::Development),
    ("xtask-run", Layer::Development),
    ("xtask-tidy", Layer::Development),
    ("xtask-tools", Layer::Development),
    ("xtask-workspace", Layer::Development),
];

/// Libraries, the crates that may use them, and the reason.
const CAPABILITIES: &[(&[&str], &[&str], &str)] = &[
    (&["ort", "ort-sys", "libloading"], &["narthex-device"], "only device uses ONNX Runtime"),
    (
        &["ureq", "reqwest"],
        &["narthex-catalog", "narthex"],
        "only catalog downloads, and cli asks servers of this machine",
    ),
    (
        &["axum", "tower-http", "hyper", "hyper-util"],
        &["narthex-server"],
        "only server accepts HTTP requests, and passes them to upstreams",
    ),
    (
        &["tokio", "tokio-rustls", "tokio-stream"],
        &["narthex-server", "narthex-mcp", "narthex"],
        "the library is synchronous; only server, mcp and cli are asynchronous",
    ),
    (
        &["symphonia", "ropus", "flac-codec", "ogg"],
        &["narthex-audio"],
        "only audio decodes and encodes sound",
    ),
    (&["image", "png", "zune-jpeg", "image-webp", "gif"], &["narthex-image"], "only image decodes pictures"),
    (
        &["realfft"],
        &["narthex-audio", "narthex-speech"],
        "features of speech and spectra of voices need transforms",
    ),
    (&["rmcp"], &["narthex-mcp"], "only mcp implements MCP"),
    (
        &["clap_complete", "indicatif", "rustyline", "comfy-table", "ctrlc"],
        &["narthex"],
        "only cli uses a terminal",
    ),
    (&["clap"], &["narthex", "xtask", "xtask-peers", "xtask-tools"], "only programs have arguments"),
    (
        &["tokenizers", "minijinja", "minijinja-contrib"],
        &["narthex-text"],
        "only text converts strings to tokens",
    ),
    (
        &["prost"],
        &["narthex-graph", "narthex-text"],
        "only graph reads ONNX files, and only text reads SentencePiece models",
    ),
    (
        &["anyhow"],
        &["narthex", "xtask", "xtask-peers", "xtask-tidy", "xtask-tools", "xtask-workspace"],
        "libraries have typed errors",
    ),
    (&["syn", "proc-macro2"], &["xtask-tidy"], "only the house rules read Rust"),
];

/// Checks every dependency of every package.
pub(crate) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        if layer(&package.name).is_none() {
            let message = "has no layer; give it one in xtask/tidy/src/layers.rs and in ARCHITECTURE.md";
            findings.push(Finding::firm(Rule::Layers, &package.name, message));
        }
        for dependency in
            package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Product)
        {
            findings.extend(check_edge(&package.name, &dependency.name));
            findings.extend(check_capability(&package.name, &dependency.name));
        }
    }
    findings
}

fn layer(package: &str) -> Option<Layer> {
    LAYERS.iter().find(|(name, _)| *name == package).map(|(_, layer)| *layer)
}

fn check_edge(from: &str, to: &str) -> Option<Finding> {
    let (upper, lower) = (layer(from)?, layer(to)?);
    let message = match (upper, lower) {
        (Layer::Product(upper), Layer::Product(lower)) if lower < upper => return None,
        (Layer::Product(upper), Layer::Product(lower)) => format!(
            "layer {upper} may use only lower layers, and {to} is in layer {lower}; move the parts that both need further down"
        ),
        (Layer::Product(_), Layer::Development) => {
            format!("{to} is for developers; name it under [dev-dependencies]")
        }
        (Layer::Development, _) => return None,
    };
    Some(Finding::firm(Rule::Layers, format!("{from} -> {to}"), message))
}

fn check_capability(from: &str, to: &str) -> Option<Finding> {
    let (_, owners, why) = CAPABILITIES.iter().find(|(libraries, _, _)| libraries.contains(&to))?;
    if owners.contains(&from) {
        return None;
    }
    let message = format!("{why}; use it through {} instead", owners.join(" or "));
    Some(Finding::firm(Rule::Capabilities, format!("{from} -> {to}"), message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;
    use xtask_workspace::workspace::Dependency;

    fn check_one(name: &str, dependencies: &[(&str, DependencyKind)], expect: &[&str]) {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency { name: (*name).into(), kind: *kind })
            .collect();
        let package = Package { name: name.into(), folder: String::new(), dependencies };
        assert_eq!(brief(&check(&[package])), expect);
    }

    #[test]
    fn edges_go_down() {
        check_one(
            "narthex-compile",
            &[("narthex-graph", DependencyKind::Product), ("half", DependencyKind::Product)],
            &[],
        );
        check_one(
            "narthex-text",
            &[("narthex-gateway", DependencyKind::Product)],
            &["layers narthex-text -> narthex-gateway"],
        );
    }

    #[test]
    fn edges_within_a_layer_are_refused() {
        check_one(
            "narthex-compile",
            &[("narthex-device", DependencyKind::Product)],
            &["layers narthex-compile -> narthex-device"],
        );
    }

    #[test]
    fn the_product_does_not_use_the_testkit() {
        check_one(
            "narthex-engine",
            &[("narthex-testkit", DependencyKind::Product)],
            &["layers narthex-engine -> narthex-testkit"],
        );
        check_one("narthex-engine", &[("narthex-testkit", DependencyKind::Tests)], &[]);
    }

    #[test]
    fn a_crate_without_a_layer_is_refused() {
        check_one("narthex-kitchen", &[], &["layers narthex-kitchen"]);
    }

    #[test]
    fn libraries_stay_with_their_owners() {
        check_one(
            "narthex-compile",
            &[("ort", DependencyKind::Product)],
            &["capabilities narthex-compile -> ort"],
        );
        check_one(
            "narthex-device",
            &[("ort", DependencyKind::Product), ("ort-sys", DependencyKind::Product)],
            &[],
        );
        check_one(
            "narthex-gateway",
            &[("ureq", DependencyKind::Product)],
            &["capabilities narthex-gateway -> ureq"],
        );
        check_one(
            "narthex-gateway",
            &[("tokio", DependencyKind::Product)],
            &["capabilities narthex-gateway -> tokio"],
        );
        check_one(
            "narthex-server",
            &[("clap", DependencyKind::Product)],
            &["capabilities narthex-server -> clap"],
        );
        check_one(
            "narthex-text",
            &[("anyhow", DependencyKind::Product), ("ureq", DependencyKind::Tests)],
            &["capabilities narthex-text -> anyhow"],
        );
    }
}
