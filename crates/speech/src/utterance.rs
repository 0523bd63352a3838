//! A text as sentences to speak.

use crate::{english::Accent, markdown, normalize, sentences};

/// Returns the normalised sentences of a Markdown text in English, in order.
pub fn utterances(markdown: &str, accent: Accent) -> Vec<String> {
    let paragraphs = markdown::paragraphs(markdown);
    let sentences = paragraphs.iter().flat_map(|paragraph| sentences::sentences(paragraph));
    let normalized = sentences.map(|sentence| normalize::normalize(sentence, accent));
    normalized.filter(|sentence| sentence.contains(char::is_alphabetic)).collect()
}

/// Returns the sentences of a Markdown text in another language, in order, without normalisation.
pub fn plain_sentences(markdown: &str) -> Vec<String> {
    let paragraphs = markdown::paragraphs(markdown);
    let sentences = paragraphs.iter().flat_map(|paragraph| sentences::sentences(paragraph));
    sentences.filter(|sentence| sentence.contains(char::is_alphanumeric)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_sentence_by_sentence() {
        let text = "# News\n\nDr. Lee paid $5.50. *Really?* See https://a.example.com/x.\n\n- 3 km\n- …";
        let expect = [
            "News.",
            "Doctor Lee paid five dollars and fifty cents.",
            "Really?",
            "See a dot example dot com slash x.",
            "three kilometers.",
        ];
        assert_eq!(utterances(text, Accent::American), expect);
    }
}
