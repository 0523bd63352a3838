//! Checks that parsers accept the valid seeds and survive the bombs.

use std::fs;

use narthex_checkpoint as checkpoint;
use narthex_compile::import::{self, ImportJob};
use narthex_graph::Graph;
use narthex_server::fuzzing::Endpoint;
use narthex_spec::{Date, progress::Quiet};
use narthex_text::{
    grammar::{Grammar, GrammarCompiler},
    template::{ChatTemplate, Message, RenderOptions, Role},
    tokenizer::Tokenizer,
};

use super::*;

#[path = "../../../../fuzz/src/answers.rs"]
#[allow(unreachable_pub, reason = "the fuzz package exports it")]
mod answer_parsers;

#[path = "../../../../fuzz/src/settings.rs"]
#[allow(unreachable_pub, reason = "the fuzz package exports it")]
mod settings_parsers;

/// Number of zero bytes in place of the tensors, as in `fuzz/src/scratch.rs`.
const ROOM: u64 = 512 << 10;

/// Checks that every valid seed of a target is accepted. A bomb may be accepted or refused, since some bombs are valid
/// files.
fn check(target: Target, accepts: impl Fn(&[u8]) -> Result<(), String>) {
    let inputs = of(target).unwrap();
    assert!(inputs.iter().any(|input| input.kind == SeedKind::Valid));
    assert!(inputs.iter().any(|input| input.kind == SeedKind::Bomb));
    for input in inputs {
        assert!(
            input.bytes.len() <= target.max_bytes(),
            "{target:?} {} is too long to be mutated",
            input.name
        );
        let found = accepts(&input.bytes);
        if input.kind == SeedKind::Valid {
            assert_eq!(found, Ok(()), "{target:?} {}", input.name);
        }
    }
}

fn shown<T>(result: Result<T, impl std::fmt::Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// Writes the files of an input to a folder, as `fuzz/src/scratch.rs` does.
fn unpack(bytes: &[u8], folder: &Path) {
    let starts: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(MARK)).collect();
    for (at, start) in starts.iter().enumerate() {
        let part = &bytes[start + MARK.len()..starts.get(at + 1).copied().unwrap_or(bytes.len())];
        let end = part.iter().position(|&byte| byte == b'\n').unwrap();
        let path = folder.join(std::str::from_utf8(&part[..end]).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &part[end + 1..]).unwrap();
    }
}

#[test]
fn gguf() {
    let folder = tempfile::tempdir().unwrap();
    check(Target::Gguf, |bytes| {
        let path = folder.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes.len() as u64 + ROOM).unwrap();
        shown(checkpoint::open(&path))
    });
}

#[test]
fn configurations() {
    check(Target::HfConfig, |bytes| {
        let folder = tempfile::tempdir().unwrap();
        let is_bert = bytes.windows(4).any(|window| window == b"bert");
        let make = if is_bert {
            narthex_testkit::checkpoint::tiny_bert_safetensors
        } else {
            narthex_testkit::checkpoint::tiny_llama_safetensors
        };
        make(folder.path(), 1).unwrap();
        unpack(bytes, folder.path());
        shown(checkpoint::open(folder.path()))
    });
}

#[test]
fn safetensors() {
    check(Target::Safetensors, |bytes| {
        let folder = tempfile::tempdir().unwrap();
        narthex_testkit::checkpoint::tiny_llama_safetensors(folder.path(), 1).unwrap();
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        unpack(bytes, folder.path());
        for entry in fs::read_dir(folder.path()).unwrap().flatten() {
            lengthen(&entry.path());
        }
        shown(checkpoint::open(folder.path()))
    });
}

/// Extends a safetensors file by as many zeros as its header states.
fn lengthen(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let (true, Some(length)) = (path.extension().is_some_and(|e| e == "safetensors"), bytes.first_chunk())
    else {
        return;
    };
    let header = serde_json::from_slice::<serde_json::Value>(&bytes[8..]).unwrap_or_default();
    let ends = header.as_object().into_iter().flat_map(|tensors| tensors.values());
    let end = ends.filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap_or(0).min(1 << 20);
    let length = u64::from_le_bytes(*length).saturating_add(8 + end).min(1 << 21);
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn graphs() {
    check(Target::Onnx, |bytes| {
        shown(Graph::decode(bytes).map_err(|e| e.to_string()).and_then(|g| shown(g.check())))
    });
}

#[test]
fn pieces() {
    check(Target::Pieces, |bytes| shown(Tokenizer::from_sentencepiece(bytes, &[])));
}

#[test]
fn exports() {
    check(Target::Import, |bytes| {
        let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        unpack(bytes, folder.path());
        let (name, length) = super::exports::DATA;
        fs::File::create(folder.path().join(name)).unwrap().set_len(length).unwrap();
        let job = ImportJob {
            name: "tiny".parse().unwrap(),
            out: out.path(),
            source: "test".to_owned(),
            compiler: "test".to_owned(),
        };
        shown(
            import::open(folder.path(), None, None).and_then(|found| found.write(job, &Quiet, &false.into())),
        )
    });
}

#[test]
fn templates() {
    let options = RenderOptions::answer(Date { year: 2026, month: 3, day: 7 });
    let message = Message::new(Role::User, "a;b".to_owned());
    check(Target::Template, |bytes| {
        let source = std::str::from_utf8(bytes).unwrap();
        let template = ChatTemplate::new(source, [("bos_token".to_owned(), "<s>".to_owned())].into());
        shown(template.and_then(|template| template.render(std::slice::from_ref(&message), &options)))
    });
}

#[test]
fn requests() {
    check(Target::Request, |bytes| {
        let endpoints = Endpoint::all();
        let refusals: Vec<String> = endpoints
            .iter()
            .filter_map(|endpoint| endpoint.read(bytes).err())
            .map(|error| error.to_string())
            .collect();
        if refusals.len() < endpoints.len() { Ok(()) } else { Err(refusals.join("\n")) }
    });
}

#[test]
fn grammars() {
    let tokenizer = Tokenizer::from_json(&narthex_testkit::checkpoint::tiny_tokenizer_json()).unwrap();
    let compiler = GrammarCompiler::new(&tokenizer, &[2]).unwrap();
    check(Target::Grammar, |bytes| {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let grammar = match text.strip_prefix('/') {
            Some(expression) => Grammar::Regex(expression.to_owned()),
            None if text.starts_with('{') => Grammar::JsonSchema(serde_json::from_str(text).unwrap()),
            None => Grammar::Lark(text.to_owned()),
        };
        shown(compiler.compile(&grammar))
    });
}

#[test]
fn manifests() {
    let folder = tempfile::tempdir().unwrap();
    let files = [("data", 1 << 16), ("model.onnx", 64), ("tokenizer.json", 64), ("chat_template.jinja", 64)];
    for (name, length) in files {
        fs::write(folder.path().join(name), vec![0; length]).unwrap();
    }
    let name = "tiny".parse().unwrap();
    check(Target::Manifest, |bytes| {
        fs::write(folder.path().join("manifest.json"), bytes).unwrap();
        shown(narthex_gateway::fuzzing::open_package(folder.path(), &name))
    });
}

#[test]
fn wheels() {
    let folder = tempfile::tempdir().unwrap();
    check(Target::Wheel, |bytes| {
        let (wheel, out) = (folder.path().join("w.whl"), folder.path().join("out"));
        fs::write(&wheel, bytes).unwrap();
        let found = shown(narthex_catalog::fuzzing::unpack(&wheel, &out));
        let _ = fs::remove_dir_all(out);
        found
    });
}

#[test]
fn keys() {
    check(Target::Keys, |bytes| narthex_catalog::fuzzing::read_keys(bytes).map(drop));
}

#[test]
fn upstream_events() {
    check(Target::UpstreamEvents, narthex_server::fuzzing::pass_upstream_events);
}

#[test]
fn settings() {
    let folder = tempfile::tempdir().unwrap();
    check(Target::Settings, |bytes| settings_parsers::read(bytes, folder.path()));
}

#[test]
fn answers() {
    check(Target::Answers, answer_parsers::read);
}

#[test]
fn prefix_blocks() {
    check(Target::PrefixBlock, |bytes| narthex_gateway::fuzzing::read_prefix_block(bytes).map(drop));
}

#[test]
fn audio() {
    check(Target::Audio, |bytes| {
        let decoder =
            narthex_audio::Decoder::open(std::io::Cursor::new(bytes)).map_err(|error| error.to_string())?;
        decoder.at_most(60).try_for_each(shown)
    });
}

#[test]
fn images() {
    check(Target::Image, |bytes| {
        let decoder = narthex_image::Decoder::open(bytes).map_err(|error| error.to_string())?;
        decoder.decode().map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn videos() {
    check(Target::Video, |bytes| {
        let frames = narthex_image::VideoReader::default().frames(bytes, &|| false);
        frames.map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn kernels() {
    check(Target::Kernels, narthex_kernels::fuzzing::compare_with_portable);
}
