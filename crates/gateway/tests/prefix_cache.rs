//! Prefixes in files: a model that is loaded again answers from them, whatever has become of the files.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
};

use narthex_gateway::{Config, Drain, Gateway, PrefixCacheConfig};
use narthex_spec::KvCacheDtype;
use support::{Answer, Tiny, complete, greedy, text};

/// Number of tokens in a block.
const BLOCK: usize = 64;

fn config(tiny: &Tiny, folder: &Path) -> Config {
    let prefix_cache = PrefixCacheConfig { folder: folder.to_owned(), bytes: 1 << 20 };
    Config { prefix_cache: Some(prefix_cache), kv_cache_dtype: KvCacheDtype::F32, ..tiny.config() }
}

/// Answers a prompt in a new gateway, which is shut down.
fn run(config: Config, model: &str) -> Answer {
    let gateway = Gateway::open(config).unwrap();
    let prompt = "the cat sat on the mat, and the dog ran after the bird by the sea; ".repeat(4);
    let answer = complete(&gateway, model, text(&prompt, greedy(12)));
    gateway.shutdown(Drain::Finish);
    answer
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
    // A damaged block, and all after it, run again.
    let mut bytes = fs::read(&stored[1]).unwrap();
    bytes[200] ^= 1;
    fs::write(&stored[1], bytes).unwrap();
    check(BLOCK);
    check(cached);
    fs::write(&stored[0], "something else").unwrap();
    check(0);
    fs::remove_file(&stored[1]).unwrap();
    check(BLOCK);

    // Another element type of the cache is another model.
    let half = Config { kv_cache_dtype: KvCacheDtype::F16, ..config(&tiny, &folder) };
    assert_eq!(run(half, &model).summary.cached_tokens, 0);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
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
