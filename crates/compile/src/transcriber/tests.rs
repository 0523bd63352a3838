//! The choice of graphs, on folders with empty files.

use std::fs;

use super::*;

#[test]
fn graphs_are_chosen_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| fs::write(folder.path().join(name), "").unwrap();
    let check = |file: Option<&str>, expect: &str| {
        assert_eq!(choose(folder.path(), "encoder-model", file).unwrap(), expect);
    };
    let refused = |file: Option<&str>| choose(folder.path(), "encoder-model", file).unwrap_err().to_string();
    assert!(refused(None).contains("found none, expected encoder-model.onnx"), "{}", refused(None));
    for name in ["encoder-model.int8.onnx", "encoder-modeling.onnx", "encoder-model.onnx.data"] {
        write(name);
    }
    check(None, ".int8");
    write("encoder-model_fp16.onnx");
    assert!(refused(None).contains("choose it with --file"), "{}", refused(None));
    check(Some("encoder-model.int8.onnx"), ".int8");
    write("encoder-model.onnx");
    check(None, "");
    assert!(refused(Some("other.onnx")).contains("the name other.onnx"));
}

#[test]
fn other_folders_are_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    // An encoder of texts.
    write("model.onnx", "");
    write("vocab.txt", "[PAD]\n");
    write("config.json", r#"{"model_type": "bert"}"#);
    assert_eq!(TranscriberFiles::find(folder.path(), None), None);
    // Whisper has the names of Moonshine, but reads features.
    write("encoder_model.onnx", "");
    write("decoder_model_merged.onnx", "");
    assert_eq!(TranscriberFiles::find(folder.path(), None), None);
    write("config.json", r#"{"model_type": "nemo-conformer-ctc"}"#);
    assert!(matches!(TranscriberFiles::find(folder.path(), None), Some(TranscriberFiles::Nemo(_))));
    let graph = folder.path().join("model.onnx");
    assert!(matches!(TranscriberFiles::find(&graph, None), Some(TranscriberFiles::Nemo(_))));
}
