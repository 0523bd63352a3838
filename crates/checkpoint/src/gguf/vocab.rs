//! Vocabulary and special token rules from GGUF metadata.
//!
//! Follows llama.cpp's `llama_vocab::impl::load`. Tokenization itself is in `narthex-text`.

use std::collections::BTreeMap;

use narthex_spec::arch::{Architecture, Family};
use narthex_text::tokenizer::GgufVocab;

use super::meta::Metadata;
use crate::{
    error::{CheckpointError, Result},
    limits::{malformed, unsupported},
    special::{SpecialTokens, ends_of, sorted},
};

/// Pre-tokenizers of BPE vocabularies whose sequences begin with BOS if the file has no setting for it.
const PRE_WITH_BOS: [&str; 11] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
];

/// Tokenizer and special tokens of a file.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The tokenizer.
    pub(crate) vocab: GgufVocab,
    /// The rules of its special tokens.
    pub(crate) special: SpecialTokens,
}

/// Reads the vocabulary. For encoders, `bos` and `eos` of the vocabulary are its `[CLS]` and `[SEP]`, which the
/// tokenizer itself adds around a text, so [`SpecialTokens::bos`] is `None`.
pub(crate) fn read(metadata: &Metadata, architecture: &Architecture) -> Result<Vocabulary> {
    let Some(model) = metadata.text("tokenizer.ggml.model")? else {
        return Err(malformed(metadata.path(), "the key tokenizer.ggml.model", "none"));
    };

    let tokens = tokens(metadata, architecture)?;
    let ids = Ids::read(metadata, model, &tokens)?;
    let pre = metadata.text("tokenizer.ggml.pre")?;
    let adds_bos = wants_bos(metadata.flag("tokenizer.ggml.add_bos_token")?, model, pre);
    let special = match architecture {
        Architecture::Decoder(arch) => SpecialTokens {
            bos: ids.bos.filter(|_| adds_bos),
            stop: ids.stop(metadata, &tokens, arch.family)?,
            pad: ids.pad,
            texts: ids.texts(&tokens),
        },
        Architecture::Encoder(_) | Architecture::Embedder(_) | Architecture::Speech(_) => {
            SpecialTokens { bos: None, stop: Vec::new(), pad: ids.pad, texts: ids.texts(&tokens) }
        }
    };

    let types = same_length(metadata, TOKEN_TYPE, tokens.len(), metadata.ints(TOKEN_TYPE)?)?;
    let scores = same_length(metadata, SCORES, tokens.len(), metadata.floats(SCORES)?)?;
    let vocab = GgufVocab {
        model: model.to_owned(),
        pre: pre.map(str::to_owned),
        scores: scores.map(<[f32]>::to_vec),
        types: types.map(|types| types.iter().map(|&kind| i32::try_from(kind).unwrap_or(0)).collect()),
        merges: metadata.texts("tokenizer.ggml.merges")?.unwrap_or(&[]).to_vec(),
        add_space_prefix: metadata.flag("tokenizer.ggml.add_space_prefix")?,
        remove_extra_whitespaces: metadata.flag("tokenizer.ggml.remove_extra_whitespaces")?,
        unk: ids.unk,
        bos: ids.bos,
        eos: ids.eos,
        pad: ids.pad,
        tokens,
    };
    Ok(Vocabulary { vocab, special })
}

const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// Returns the tokens, at most as many as the embedding has rows.
fn tokens(metadata: &Metadata, architecture: &Architecture) -> Result<Vec<String>> {
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or(&[]);
    let rows = match architecture {
        Architecture::Decoder(decoder) => decoder.vocab,
        Architecture::Encoder(encoder) => encoder.vocab,
        Architecture::Embedder(embedder) => embedder.decoder.vocab,
        Architecture::Speech(speech) => speech.vocab,
    };
    if tokens.is_empty() {
        return Err(unsupported("tokenizer", "tokens in the GGUF file; convert the model again", "none"));
    }
    if tokens.len() > rows {
        let expected = format!("tokenizer.ggml.tokens for the {rows} rows of the embedding");
        return Err(malformed(metadata.path(), expected, tokens.len()));
    }
    Ok(tokens.to_vec())
}

fn same_length<'a, T>(
    metadata: &Metadata,
    key: &str,
    length: usize,
    values: Option<&'a [T]>,
) -> Result<Option<&'a [T]>> {
    match values {
        Some(values) if values.len() != length => Err(malformed(
            metadata.path(),
            format!("{length} values of {key}, one for each token"),
            values.len(),
        )),
        values => Ok(values),
    }
}

/// Returns whether a sequence begins with BOS: the file's setting, or else the convention of its tokenizer.
fn wants_bos(stated: Option<bool>, model: &str, pre: Option<&str>) -> bool {
    stated.unwrap_or_else(|| match model {
        // ChatGLM3's template writes its own initial tokens.
        "llama" => pre != Some("chatglm-spm"),
        "gpt2" => pre.is_some_and(|pre| PRE_WITH_BOS.contains(&pre)),
        _ => false,
    })
}

/// Special tokens by role. Each id is inside the vocabulary.
#[derive(Debug, Default)]
struct Ids {
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    cls: Option<u32>,
    sep: Option<u32>,
    mask: Option<u32>,
}

impl Ids {
    fn read(metadata: &Metadata, model: &str, tokens: &[String]) -> Result<Self> {
        let id = |role: &str, default: Option<u32>| {
            let stated = metadata.token(&format!("tokenizer.ggml.{role}_token_id"))?;
            // Some files state ids beyond their vocabulary; llama.cpp ignores them too.
            let mut ids = stated.into_iter().chain(default);
            Ok::<_, CheckpointError>(ids.find(|&id| (id as usize) < tokens.len()))
        };

        if model == "bert" {
            let cls = id("cls", position(tokens, "[CLS]"))?;
            // The key is misspelt in the format itself.
            let sep = id("seperator", position(tokens, "[SEP]"))?;
            return Ok(Self {
                bos: cls,
                eos: sep,
                unk: id("unknown", position(tokens, "[UNK]"))?,
                pad: id("padding", position(tokens, "[PAD]"))?,
                cls,
                sep,
                mask: id("mask", position(tokens, "[MASK]"))?,
            });
        }

        let is_llama = model == "llama";
        Ok(Self {
            bos: id("bos", is_llama.then_some(1))?,
            eos: id("eos", is_llama.then_some(2))?,
            unk: id("unknown", is_llama.then_some(0))?,
            pad: id("padding", None)?,
            ..Self::default()
        })
    }

    /// Returns every token that ends an answer.
    fn stop(&self, metadata: &Metadata, tokens: &[String], family: Family) -> Result<Vec<u32>> {
        let mut stop: Vec<u32> = self.eos.into_iter().collect();
        for role in ["eot", "eom"] {
            let id = metadata.token(&format!("tokenizer.ggml.{role}_token_id"))?;
            stop.extend(id.filter(|&id| (id as usize) < tokens.len()));
        }
        stop.extend(tokens.iter().enumerate().filter_map(|(id, text)| {
            ends_of(Some(family)).any(|end| end == text).then(|| u32::try_from(id).ok()).flatten()
        }));
        Ok(sorted(stop))
    }

    /// Returns the texts of the roles that templates use.
    fn texts(&self, tokens: &[String]) -> BTreeMap<String, String> {
        let roles = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("unk_token", self.unk),
            ("pad_token", self.pad),
            ("cls_token", self.cls),
            ("sep_token", self.sep),
            ("mask_token", self.mask),
        ];
        roles
            .into_iter()
            .filter_map(|(role, id)| Some((role.to_owned(), tokens.get(id? as usize)?.clone())))
            .collect()
    }
}

fn position(tokens: &[String], text: &str) -> Option<u32> {
    tokens.iter().position(|token| token == text).and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use narthex_testkit::checkpoint::{Gguf, Meta, tiny_bert, tiny_llama};
    use narthex_text::tokenizer::{Specials, Tokenizer};

    use super::*;
    use crate::checkpoint::{Checkpoint, TokenizerSource};

    /// Vocabularies in llama.cpp's source that have test texts with expected ids. Gemma 4's is left out, because its
    /// tokenizer model is not supported.
    const VOCABULARIES: [&str; 14] = [
        "bert-bge",
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ];

    fn open(mut file: Gguf, change: impl FnOnce(&mut Gguf)) -> Result<Checkpoint> {
        change(&mut file);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, file.to_bytes()).unwrap();
        crate::open(&path)
    }

    fn special(change: impl FnOnce(&mut Gguf)) -> SpecialTokens {
        open(tiny_llama(1), change).unwrap_or_else(|error| panic!("{error}")).special
    }

    fn refused(change: impl FnOnce(&mut Gguf), expect: &str) {
        let found =
            open(tiny_llama(1), change).map_or_else(|error| error.to_string(), |_| "opened".to_owned());
        assert!(found.contains(expect), "{found} lacks {expect}");
    }

    fn set(key: &'static str, value: Meta) -> impl Fn(&mut Gguf) {
        move |file| file.set(&format!("tokenizer.ggml.{key}"), value.clone())
    }

    #[test]
    fn the_vocabulary_is_handed_on() {
        let Ok(checkpoint) = open(tiny_llama(1), |_| ()) else { panic!("refused") };
        let TokenizerSource::Gguf(vocab) = &checkpoint.tokenizer else { panic!("no GGUF vocabulary") };
        assert_eq!((vocab.model.as_str(), vocab.pre.as_deref()), ("gpt2", Some("smollm")));
        assert_eq!((vocab.tokens.len(), vocab.merges.len()), (300, 41));
        assert_eq!(vocab.types.as_ref().map(|types| types[2]), Some(3));
        assert_eq!((vocab.unk, vocab.bos, vocab.eos, vocab.pad), (None, Some(0), Some(2), Some(0)));
        assert!(vocab.scores.is_none());
        assert!(checkpoint.chat_template.is_some_and(|template| template.contains("<|im_start|>")));
        assert_eq!(checkpoint.license.as_deref(), Some("apache-2.0"));
    }

    #[test]
    fn bos_is_added_as_stated_or_by_convention() {
        let check = |changes: &[&dyn Fn(&mut Gguf)], expect| {
            let found = special(|file| {
                file.unset("tokenizer.ggml.add_bos_token");
                changes.iter().for_each(|change| change(file));
            });
            assert_eq!(found.bos, expect);
        };
        let llama = set("model", Meta::Text("llama".into()));
        check(&[], None);
        check(&[&set("pre", Meta::Text("llama-bpe".into()))], Some(0));
        check(&[&set("add_bos_token", Meta::Bool(true))], Some(0));
        check(&[&llama], Some(0));
        check(&[&llama, &|file| file.unset("tokenizer.ggml.bos_token_id")], Some(1));
        check(&[&llama, &set("add_bos_token", Meta::Bool(false))], None);
        check(&[&set("add_bos_token", Meta::Bool(true)), &set("bos_token_id", Meta::U32(300))], None);
    }

    #[test]
    fn every_end_token_stops() {
        let check = |change: &dyn Fn(&mut Gguf), expect: &[u32]| assert_eq!(special(change).stop, expect);
        // `<|endoftext|>` is 0 and `<|im_end|>` 2.
        check(&|_| (), &[0, 2]);
        check(&set("eos_token_id", Meta::U32(7)), &[0, 2, 7]);
        check(&set("eot_token_id", Meta::U32(8)), &[0, 2, 8]);
        check(&set("eom_token_id", Meta::U32(9)), &[0, 2, 9]);
        check(&set("eot_token_id", Meta::U32(300)), &[0, 2]);
        check(&set("eos_token_id", Meta::Raw(5, (-1i32).to_le_bytes().to_vec())), &[0, 2]);
    }

    #[test]
    fn templates_get_the_texts_of_special_tokens() {
        let texts = special(|_| ()).texts;
        let expect =
            [("bos_token", "<|endoftext|>"), ("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")];
        assert_eq!(texts, expect.map(|(role, text)| (role.to_owned(), text.to_owned())).into());
    }

    #[test]
    fn vocabularies_that_contradict_the_file_are_refused() {
        refused(|file| file.unset("tokenizer.ggml.model"), "the key tokenizer.ggml.model");
        refused(|file| file.unset("tokenizer.ggml.tokens"), "convert the model again");
        refused(
            set("tokens", Meta::Texts(vec!["a".into(); 301])),
            "for the 300 rows of the embedding, found 301",
        );
        refused(set("token_type", Meta::I32s(vec![1; 299])), "300 values of tokenizer.ggml.token_type");
        refused(set("scores", Meta::F32s(vec![0.0; 301])), "300 values of tokenizer.ggml.scores");
        refused(set("merges", Meta::U32(1)), "tokenizer.ggml.merges as an array of strings");
    }

    /// Test texts with the ids that llama.cpp produces: `FILE.inp` has the texts, `FILE.out` a line of ids for each.
    fn cases(folder: &Path, name: &str) -> Vec<(String, Vec<u32>)> {
        let text = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (texts, ids) = (text("inp"), text("out"));
        let ids = ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect());
        texts.split("\n__ggml_vocab_test__\n").map(str::to_owned).zip(ids).collect()
    }

    /// Returns the texts for which this tokenizer produces other ids than those of `cases`.
    fn differing(file: &Path, specials: Specials, cases: &[(String, Vec<u32>)]) -> Vec<String> {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let contents = super::super::read::read(file, &bytes).unwrap();
        let Ok(Checkpoint { mut architecture, .. }) = open(tiny_llama(1), |_| ()) else { panic!("refused") };
        if let Architecture::Decoder(decoder) = &mut architecture {
            decoder.vocab = usize::MAX;
        }
        let vocab = read(&contents.metadata, &architecture).unwrap().vocab;
        let t = Tokenizer::from_gguf(&vocab).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let found = cases.iter().filter_map(|(text, expect)| {
            let found = t.encode(text, specials).unwrap();
            (found != *expect).then(|| format!("{text:?}: {expect:?}, found {found:?}"))
        });
        found.collect()
    }

    #[test]
    #[ignore = "needs llama.cpp's vocabularies; `cargo xtask vocabularies` fetches them and runs this"]
    fn vocabularies_cut_text_as_llama_cpp_does() {
        let folder = PathBuf::from(std::env::var_os("NARTHEX_VOCABULARIES").expect("NARTHEX_VOCABULARIES"));
        for name in VOCABULARIES {
            let name = format!("ggml-vocab-{name}.gguf");
            let mut cases = cases(&folder, &name);
            // The publisher's normaliser composes letters and marks; llama.cpp omits this.
            let marked = |text: &str| text.contains(|c: char| ('\u{300}'..'\u{370}').contains(&c));
            cases.retain(|(text, _)| name != "ggml-vocab-qwen35.gguf" || !marked(text));
            assert!(cases.len() > 40, "{name}");
            assert_eq!(differing(&folder.join(&name), Specials::Parse, &cases), [""; 0], "{name}");
        }
    }

    #[test]
    #[ignore = "needs Gemma 3's GGUF file; `narthex pull gemma3:270m-base`, then `cargo xtask vocabularies`"]
    fn gemma_cuts_text_as_sentencepiece_does() {
        let file = PathBuf::from(std::env::var_os("NARTHEX_GEMMA3").expect("NARTHEX_GEMMA3"));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/vocabularies");
        let cases = cases(&folder, "gemma3");
        assert!(cases.len() > 20);
        assert_eq!(differing(&file, Specials::AsText, &cases), [""; 0]);
    }

    #[test]
    fn encoders_have_their_own_special_tokens() {
        for change in [|_: &mut Gguf| (), |file: &mut Gguf| file.unset("tokenizer.ggml.cls_token_id")] {
            let Ok(checkpoint) = open(tiny_bert(1), change) else { panic!("refused") };
            let TokenizerSource::Gguf(vocab) = checkpoint.tokenizer else { panic!("no GGUF vocabulary") };
            assert_eq!((vocab.unk, vocab.bos, vocab.eos, vocab.pad), (Some(1), Some(2), Some(3), Some(0)));
            let special = checkpoint.special;
            assert_eq!((special.bos, special.stop, special.pad), (None, vec![], Some(0)));
            assert_eq!(special.texts.get("mask_token").map(String::as_str), Some("[MASK]"));
        }
    }
}
