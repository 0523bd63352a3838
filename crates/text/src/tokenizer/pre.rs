//! Rules by which byte-level BPE tokenizers split text into words, by their names in GGUF files.
//!
//! Each rule is a list of patterns: the first splits the text, the next splits every part again, and text that a
//! pattern does not match stays a part. The patterns are those of the publishers' own `tokenizer.json`; the names are
//! llama.cpp's. Other rules are refused: with a similar one, the model's answers would be subtly worse.

/// One splitting rule.
#[derive(Debug)]
pub(super) struct Rule {
    /// Names in GGUF files.
    names: &'static [&'static str],
    /// Patterns, applied in order.
    pub(super) splits: &'static [&'static str],
    /// Treatment of words that are tokens.
    pub(super) ignore_merges: IgnoreMerges,
    /// Normalisation before splitting.
    pub(super) unicode: Unicode,
}

/// The normal form in which text is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unicode {
    /// Unchanged.
    AsIs,
    /// Normal form C, as in the publisher's `tokenizer.json`; llama.cpp omits it.
    Nfc,
}

/// Treatment of words that are tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IgnoreMerges {
    /// A word that is a token stays one token regardless of the merges, as in tiktoken.
    Yes,
    /// A word that is a token is merged like any other.
    No,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
const DEEPSEEK_CJK: &str = "[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const DEEPSEEK_LETTERS: &str = "\\s?[\
    A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\
    \u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\
    \u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\
    \u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\
    \u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\
    \u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\
    \u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\
    \u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\
    \u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\
    \u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\
    \u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\
    \u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\
    \u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\
    \u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}\
    ]+";
const DEEPSEEK_MARKS: &str =
    "\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const DEEPSEEK_V3_CJK: &str = "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// All rules.
const RULES: &[Rule] = &[
    rule(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "a.x-4.0",
            "jina-v1-en",
            "jina-v2-code",
            "jina-v2-de",
            "jina-v2-es",
            "jina-de",
            "jina-es",
        ],
        &[GPT2],
        IgnoreMerges::No,
    ),
    rule(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        &[r"\p{N}", GPT2],
        IgnoreMerges::No,
    ),
    rule(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
        IgnoreMerges::Yes,
    ),
    rule(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3], IgnoreMerges::No),
    nfc(rule(&["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"], &[QWEN2], IgnoreMerges::No)),
    nfc(rule(&["qwen35"], &[QWEN35], IgnoreMerges::No)),
    rule(&["hunyuan"], &[QWEN2], IgnoreMerges::No),
    rule(&["tekken"], &[TEKKEN], IgnoreMerges::Yes),
    rule(&["gpt-4o", "llama4", "kanana2"], &[O200K], IgnoreMerges::No),
    rule(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING], IgnoreMerges::No),
    rule(&["seed-coder"], &[SEED_CODER], IgnoreMerges::No),
    rule(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM], IgnoreMerges::No),
    rule(&["viking"], &[BLOOM, r"\p{N}"], IgnoreMerges::No),
    rule(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_CJK, r"\p{N}+"],
        IgnoreMerges::No,
    ),
    rule(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
        IgnoreMerges::No,
    ),
    rule(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", DEEPSEEK_V3_CJK, DEEPSEEK_V3],
        IgnoreMerges::No,
    ),
    rule(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], IgnoreMerges::No),
    rule(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], IgnoreMerges::No),
];

const fn rule(
    names: &'static [&'static str],
    splits: &'static [&'static str],
    ignore_merges: IgnoreMerges,
) -> Rule {
    Rule { names, splits, ignore_merges, unicode: Unicode::AsIs }
}

const fn nfc(rule: Rule) -> Rule {
    Rule { unicode: Unicode::Nfc, ..rule }
}

pub(super) fn find(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

/// Returns the names of all rules, sorted.
pub(super) fn known() -> Vec<&'static str> {
    let mut names: Vec<&str> = RULES.iter().flat_map(|rule| rule.names.iter().copied()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let splits: Vec<serde_json::Value> = find(name)
            .unwrap()
            .splits
            .iter()
            .map(|pattern| {
                serde_json::json!(
                    {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}
                )
            })
            .collect();
        let json = serde_json::json!({"type": "Sequence", "pretokenizers": splits});
        let pre_tokenizer: PreTokenizerWrapper = serde_json::from_value(json).unwrap();
        let mut string = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut string).unwrap();
        let splits = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    #[test]
    fn names_are_unique() {
        let names = known();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{names:?}");
    }

    #[test]
    fn every_pattern_compiles_and_loses_nothing() {
        let text = "Hello, it's 12345 o'clock\r\n\n  x=1; ČESKÝ 中文テスト 한국어 ½ 🙂\u{200d}é\t!";
        for name in known() {
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn rules_differ_where_they_should() {
        let text = "I'LL pay 12345 €\n\n  now";
        let check = |name: &str, expect: &[&str]| assert_eq!(words(name, text), expect, "{name}");
        check("gpt-2", &["I", "'", "LL", " pay", " 12345", " €", "\n\n ", " now"]);
        check("smollm", &["I", "'", "LL", " pay", " ", "1", "2", "3", "4", "5", " €", "\n\n ", " now"]);
        check("llama-bpe", &["I", "'LL", " pay", " ", "123", "45", " €\n\n", " ", " now"]);
        check("qwen2", &["I", "'LL", " pay", " ", "1", "2", "3", "4", "5", " €\n\n", " ", " now"]);
        check("gpt-4o", &["I'LL", " pay", " ", "123", "45", " €\n\n", " ", " now"]);
        check("falcon", &["I", "'", "LL", " pay", " ", "123", "45", " €", "\n\n ", " now"]);
    }
}
