//! Prefixes in files: a model that is loaded again answers from them, whatever has become of the files.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_gateway::{
    Config, Drain, Gateway, PrefixCacheConfig,
    request::{CompletionRequest, Prompt},
};
use narthex_spec::KvCacheDtype;
use serde_json::{Value, json};

use crate::support::{Answer, Tiny, complete, greedy, text, warnings};

/// Number of tokens in a block.
const BLOCK: usize = 64;

fn config(tiny: &Tiny, folder: &Path) -> Config {
    let prefix_cache = PrefixCacheConfig { folder: folder.to_owned(), bytes: 1 << 20 };
    Config { prefix_cache: Some(prefix_cache), kv_cache_dtype: KvCacheDtype::F32, ..tiny.config() }
}

/// Answers a prompt in a new gateway, which is shut down.
fn run(config: Config, model: &str) -> Answer {
    let prompt = "the cat sat on the mat, and the dog ran after the bird by the sea; ".repeat(4);
    answer(config, model, text(&prompt, greedy(12)))
}

/// Answers a request in a new gateway, which is shut down.
fn answer(config: Config, model: &str, request: CompletionRequest) -> Answer {
    let gateway = Gateway::open(config).unwrap();
    let answer = complete(&gateway, model, request);
    gateway.shutdown(Drain::Finish);
    answer
}

/// Compiles the tiny checkpoint of a family with a context of 512 tokens. Returns the model's name.
fn family(tiny: &Tiny, family: &str, change: impl FnOnce(&mut Value)) -> String {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/families");
    let folder = tiny.home().join(family);
    fs::create_dir_all(&folder).unwrap();
    fs::copy(goldens.join(family).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    fs::copy(goldens.join("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(goldens.join(family).join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = json!(512);
    change(&mut config);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    tiny.compile(folder)
}

/// Returns a request for a greedy answer after the first `length` tokens of a fixed sequence.
fn tokens(length: u32, answer: usize) -> CompletionRequest {
    let tokens = (0..length).map(|i| (7 * i * i + 3 * i + 5) % 77 + 3).collect();
    CompletionRequest { prompt: Prompt::Tokens(tokens), ..text("", greedy(answer)) }
}

/// Returns all files of the cache.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries(folder).flat_map(|model| entries(&model).collect::<Vec<_>>()).collect();
    files.sort();
    files
}

#[test]
fn a_model_that_is_loaded_again_answers_from_the_files() {
    warnings::record();
    let tiny = Tiny::new();
    let (model, folder) = (tiny.long_chat(), tiny.home().join("prefixes"));
    let alone = run(tiny.config(), &model);
    let first = run(config(&tiny, &folder), &model);
    assert_eq!((&first.text, first.summary.cached_tokens), (&alone.text, 0));
    let prompt = first.summary.prompt_tokens;
    let cached = (prompt - 1) / BLOCK * BLOCK;
    assert!(cached >= 2 * BLOCK, "{prompt}");
    // The last token of the answer was not in the cache.
    let stored = files(&folder);
    assert_eq!(stored.len(), (prompt + 11) / BLOCK);
    let check = |cached: usize| {
        let again = run(config(&tiny, &folder), &model);
        assert_eq!((again.text, again.summary.cached_tokens), (first.text.clone(), cached));
        assert_eq!(files(&folder), stored, "every block is stored again");
    };
    check(cached);
    let warned = |block: usize| {
        let path = stored[block].display().to_string();
        warnings::recorded(&[&path, "of the prefix cache is ignored and removed: "]).len()
    };
    // A damaged block, and all after it, run again. The log names its file.
    let mut bytes = fs::read(&stored[1]).unwrap();
    bytes[200] ^= 1;
    fs::write(&stored[1], bytes).unwrap();
    assert_eq!([warned(0), warned(1)], [0, 0]);
    check(BLOCK);
    assert_eq!([warned(0), warned(1)], [0, 1]);
    check(cached);
    fs::write(&stored[0], "something else").unwrap();
    check(0);
    assert_eq!([warned(0), warned(1)], [1, 1]);
    fs::remove_file(&stored[1]).unwrap();
    check(BLOCK);

    // Another element type of the cache is another model.
    let half = Config { kv_cache_dtype: KvCacheDtype::F16, ..config(&tiny, &folder) };
    assert_eq!(run(half, &model).summary.cached_tokens, 0);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn conversations_that_have_lost_their_slot_are_found_in_memory() {
    let tiny = Tiny::new();
    let attention = tiny.long_chat();
    let convolutions = family(&tiny, "lfm2", |_| ());
    let cases = [
        (&attention, KvCacheDtype::F32),
        (&attention, KvCacheDtype::F16),
        (&attention, KvCacheDtype::I8),
        (&convolutions, KvCacheDtype::I8),
    ];
    for (model, kv_cache_dtype) in cases {
        let config = || Config { slots: 1, kv_cache_dtype, ..tiny.config() };
        let gateway = Gateway::open(config()).unwrap();
        // The conversations differ from their first token on, and each answer takes the only slot.
        let turn = |number: u32, turn: u32| {
            let length = 150 + 20 * turn;
            let tokens = (0..length).map(|i| (7 * i * i + (3 + number) * i + 5 + number) % 77 + 3).collect();
            CompletionRequest { prompt: Prompt::Tokens(tokens), ..text("", greedy(8)) }
        };
        for (round, cached) in [(0, 0..=0), (1, 150..=169)] {
            for number in 0..6 {
                let found = complete(&gateway, model, turn(number, round));
                let alone = answer(config(), model, turn(number, round));
                assert_eq!((&found.text, alone.summary.cached_tokens), (&alone.text, 0));
                let tokens = found.summary.cached_tokens;
                assert!(cached.contains(&tokens), "{tokens} of conversation {number} in round {round}");
            }
        }
        let status = gateway.status().remove(0);
        let counters = status.engine.unwrap();
        assert!(counters.restored_tokens >= 6 * 150, "{counters:?}");
        assert!(counters.prefix_bytes > 0 && counters.prefix_bytes < counters.kv_used_bytes, "{counters:?}");
        gateway.shutdown(Drain::Finish);
    }
}

#[test]
fn a_folder_that_is_a_file_stores_nothing() {
    let tiny = Tiny::new();
    let (model, folder) = (tiny.long_chat(), tiny.home().join("prefixes"));
    fs::write(&folder, "a file").unwrap();
    let answer = run(config(&tiny, &folder), &model);
    assert_eq!((answer.text, answer.summary.cached_tokens), (run(tiny.config(), &model).text, 0));
    assert_eq!(fs::read(&folder).unwrap(), b"a file");
}

#[test]
fn models_with_windows_and_convolutions_answer_from_the_files() {
    // Five of six layers of Gemma have a window of ten tokens, and two of four layers of LFM2 a convolution over three.
    for name in ["gemma3", "lfm2"] {
        let tiny = Tiny::new();
        let (model, folder) = (family(&tiny, name, |_| ()), tiny.home().join("prefixes"));
        let alone = answer(tiny.config(), &model, tokens(300, 20));
        let check = |cached: usize| {
            let found = answer(config(&tiny, &folder), &model, tokens(300, 20));
            assert_eq!((found.text, found.summary.cached_tokens), (alone.text.clone(), cached), "{name}");
        };
        check(0);
        check(4 * BLOCK);
        // A window that begins in a block that is missing is computed again.
        fs::remove_file(&files(&folder)[2]).unwrap();
        check(2 * BLOCK);
    }
}

#[test]
fn a_model_with_two_sets_of_rotary_factors_answers_from_the_files() {
    let tiny = Tiny::new();
    let change = |config: &mut Value| {
        config["original_max_position_embeddings"] = json!(200);
        config["rope_parameters"]["original_max_position_embeddings"] = json!(200);
    };
    let (model, folder) = (family(&tiny, "phi3.5", change), tiny.home().join("prefixes"));
    let check = |length: u32, new: usize, cached: usize| {
        let alone = answer(tiny.config(), &model, tokens(length, new));
        let found = answer(config(&tiny, &folder), &model, tokens(length, new));
        assert_eq!((found.text, found.summary.cached_tokens), (alone.text, cached), "{length}");
    };
    // The keys of a longer text are of the second set, which is not stored.
    check(150, 5, 0);
    check(150, 5, 2 * BLOCK);
    // An answer that passes the length computes the keys again from their tokens.
    check(180, 60, 2 * BLOCK);
    check(300, 5, 0);
    check(150, 5, 2 * BLOCK);
}
