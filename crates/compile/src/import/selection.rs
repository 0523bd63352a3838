//! Selects the graphs of one model in a folder. Exporters keep several quantisations side by side, which differ by a
//! suffix: `model.onnx`, `model_quantized.onnx`, `model_q4.onnx`.

use std::path::{Path, PathBuf};

use super::{pipeline::Stage, refused};
use crate::error::Result;
use narthex_checkpoint::hf::folder::{Folder, inside};
use narthex_graph::onnx::files::{OnnxFileError, graph_files};

/// The graphs of one model, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GraphSelection {
    pub(super) files: Vec<PathBuf>,
    pub(super) form: Composition,
}

/// Composition of a model from its graphs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Composition {
    /// One graph.
    Single,
    /// A graph that embeds tokens, then a decoder that reads their rows.
    Embedded,
    /// A decoder for the beginning of a sequence, then one for later steps.
    Branches,
    /// The stages of a pipeline, one graph each.
    Stages(Vec<Stage>),
}

/// Names of graphs, the most complete first.
const MERGED: &str = "decoder_model_merged";
const NEXT: &str = "decoder_with_past_model";
const FIRST: &str = "decoder_model";
const WHOLE: &str = "model";
const EMBEDDING: &str = "embed_tokens";

/// Parts of models that are not imported.
const OTHERS: [&str; 2] = ["encoder_model", "vision_encoder"];

/// Selects the graph called `file`, or the one without a suffix, together with its partners.
pub(super) fn choose(folder: &Folder, file: Option<&str>) -> Result<GraphSelection> {
    // The other graph of a pair is in the same folder.
    let named = file.filter(|file| inside(file)).map(|file| folder.file(file)).filter(|path| path.is_file());
    let files = graph_files(named.as_deref().and_then(Path::parent).unwrap_or(folder.path()))?;
    if files.is_empty() {
        return Err(OnnxFileError::NoModel { path: folder.path().to_owned() }.into());
    }

    let stems: Vec<String> = files.iter().map(|path| stem(path)).collect();
    let content = format!("content of {}", folder.path().display());
    if let Some(other) = stems.iter().find(|stem| OTHERS.iter().any(|other| suffix(stem, other).is_some())) {
        let expected = "one decoder or one encoder; encoder-decoder and vision models are not imported";
        return Err(refused(content, expected, other));
    }

    let chosen = match file {
        Some(file) => files
            .iter()
            .find(|path| inside(file) && path.ends_with(Path::new(file)))
            .map(|path| stem(path))
            .ok_or_else(|| refused(&content, listed(&stems), file))?,
        None => usual(&stems).ok_or_else(|| {
            let expected = "a model.onnx or decoder_model_merged.onnx; choose a graph with --file";
            refused(&content, expected, listed(&stems))
        })?,
    };

    let graph = with_stem(&files, &chosen).ok_or_else(|| refused(&content, listed(&stems), &chosen))?;
    let first_suffix = suffix(&chosen, FIRST).filter(|_| suffix(&chosen, MERGED).is_none());
    if let Some(ending) = suffix(&chosen, NEXT).or(first_suffix) {
        let pair = [partner(&files, FIRST, ending), partner(&files, NEXT, ending)];
        let [Some(first), Some(next)] = pair else {
            let expected = format!("{FIRST}{ending}.onnx and {NEXT}{ending}.onnx, or {MERGED}{ending}.onnx");
            return Err(refused(content, expected, format!("{chosen}.onnx alone")));
        };
        return Ok(GraphSelection { files: vec![first, next], form: Composition::Branches });
    }

    let ending = suffix(&chosen, MERGED).or_else(|| suffix(&chosen, WHOLE)).unwrap_or_default();
    Ok(match partner(&files, EMBEDDING, ending) {
        Some(embedding) => GraphSelection { files: vec![embedding, graph], form: Composition::Embedded },
        None => GraphSelection { files: vec![graph], form: Composition::Single },
    })
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn with_stem(files: &[PathBuf], name: &str) -> Option<PathBuf> {
    files.iter().find(|path| stem(path) == name).cloned()
}

/// Returns the graph `base` with the suffix `ending`, or else without a suffix.
fn partner(files: &[PathBuf], base: &str, ending: &str) -> Option<PathBuf> {
    with_stem(files, &format!("{base}{ending}")).or_else(|| with_stem(files, base))
}

/// Returns the rest of a graph's name after `base`: nothing, or a suffix such as `_q4`.
fn suffix<'a>(stem: &'a str, base: &str) -> Option<&'a str> {
    stem.strip_prefix(base).filter(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Returns the default graph: one without a suffix, or the only one.
fn usual(stems: &[String]) -> Option<String> {
    let exact = [MERGED, FIRST, NEXT, WHOLE].into_iter().find(|base| stems.iter().any(|stem| stem == base));
    exact.map(str::to_owned).or_else(|| {
        let mut models = stems.iter().filter(|stem| suffix(stem, EMBEDDING).is_none());
        models.next().filter(|_| models.next().is_none()).cloned()
    })
}

/// Formats the names of graphs for a message.
fn listed(stems: &[String]) -> String {
    const MAX_LISTED: usize = 12;
    let mut names: Vec<String> = stems.iter().take(MAX_LISTED).map(|stem| format!("{stem}.onnx")).collect();
    if stems.len() > MAX_LISTED {
        names.push(format!("{} more", stems.len() - MAX_LISTED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_chosen_by_their_names_and_joined_to_their_partners() {
        let check = |names: &[&str], file: Option<&str>, expect: Result<(&[&str], Composition), &str>| {
            let folder = tempfile::tempdir().unwrap();
            for name in names {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
            let found = choose(&Folder::new(folder.path()), file);
            match (found, expect) {
                (Ok(found), Ok((files, form))) => {
                    let expected = files.iter().map(|name| folder.path().join(name)).collect();
                    assert_eq!(found, GraphSelection { files: expected, form }, "{names:?}");
                }
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{error} lacks {part}");
                }
                (found, _) => panic!("{names:?}, {file:?}: {found:?}"),
            }
        };
        check(&["model.onnx", "model_q4.onnx"], None, Ok((&["model.onnx"], Composition::Single)));
        check(
            &["model.onnx", "model_q4.onnx"],
            Some("model_q4.onnx"),
            Ok((&["model_q4.onnx"], Composition::Single)),
        );
        check(&["onnx/model.onnx"], Some("onnx/model.onnx"), Ok((&["onnx/model.onnx"], Composition::Single)));
        check(
            &["model.onnx", "onnx/model.onnx"],
            Some("onnx/model.onnx"),
            Ok((&["onnx/model.onnx"], Composition::Single)),
        );
        check(&["any.onnx"], None, Ok((&["any.onnx"], Composition::Single)));
        let merged = ["decoder_model_merged.onnx", "decoder_model_merged_q4.onnx", "embed_tokens.onnx"];
        let prepend_embedding = |graph| vec!["embed_tokens.onnx", graph];
        check(&merged, None, Ok((&prepend_embedding("decoder_model_merged.onnx"), Composition::Embedded)));
        let quantised = "decoder_model_merged_q4.onnx";
        check(&merged, Some(quantised), Ok((&prepend_embedding(quantised), Composition::Embedded)));
        let two = ["decoder_model.onnx", "decoder_with_past_model.onnx"];
        check(&two, None, Ok((&two, Composition::Branches)));
        check(&two[..1], None, Err("decoder_model.onnx alone"));
        check(&["model_a.onnx", "model_b.onnx"], None, Err("choose a graph with --file"));
        check(&["model.onnx"], Some("../model.onnx"), Err("../model.onnx"));
        check(&["model.onnx"], Some("other.onnx"), Err("other.onnx"));
        check(&["encoder_model.onnx", "decoder_model_merged.onnx"], None, Err("encoder-decoder"));
        check(&["config.json"], None, Err("contains no .onnx file"));
    }
}
