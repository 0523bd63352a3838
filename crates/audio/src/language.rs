//! The languages that Whisper recognises: their codes and English names.

/// Codes and English names, in the order of Whisper's language tokens.
pub const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// Other English names of languages, with their codes.
const SYNONYMS: [(&str, &str); 13] = [
    ("burmese", "my"),
    ("castilian", "es"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("mandarin", "zh"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("panjabi", "pa"),
    ("pushto", "ps"),
    ("sinhalese", "si"),
    ("valencian", "ca"),
    ("jv", "jw"),
];

/// Returns the code of a language, which is named by its code, by a tag such as `en-GB`, or by its English name.
pub fn code(language: &str) -> Option<&'static str> {
    let language = language.trim().to_lowercase();
    let primary = language.split(['-', '_']).next().unwrap_or_default();
    let listed = |wanted: &str| LANGUAGES.iter().find(|(code, name)| *code == wanted || *name == wanted);
    let synonym = |wanted: &str| SYNONYMS.iter().find(|(name, _)| *name == wanted).map(|(_, code)| *code);
    listed(&language)
        .or_else(|| listed(primary))
        .map(|(code, _)| *code)
        .or_else(|| synonym(&language))
        .or_else(|| synonym(primary))
}

/// Returns the English name of the language with a code.
pub fn name(code: &str) -> Option<&'static str> {
    LANGUAGES.iter().find(|(listed, _)| *listed == code).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_found_by_code_tag_and_name() {
        let cases = [
            ("en", Some("en")),
            ("EN", Some("en")),
            ("English", Some("en")),
            ("en-GB", Some("en")),
            ("pt_BR", Some("pt")),
            ("yue", Some("yue")),
            ("haitian creole", Some("ht")),
            ("Mandarin", Some("zh")),
            ("jv", Some("jw")),
            ("", None),
            ("klingon", None),
            ("-", None),
        ];
        for (language, expect) in cases {
            assert_eq!(code(language), expect, "{language}");
        }
    }
}
