//! Text files that a question is about: `chat --file`.

use std::path::PathBuf;

use narthex_gateway::request::{ReadDocument, ReadSource, ReadSpan, Reading};

use crate::input_file;

/// Reads the files. Their titles are their names.
pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<ReadDocument>> {
    let mut documents = Vec::with_capacity(files.len());
    for path in files {
        let title = path.file_name().map(|name| name.to_string_lossy().into_owned());
        documents.push(ReadDocument { title, text: input_file::text(path)? });
    }
    Ok(documents)
}

/// Returns a question with the files before it, for models that read whole conversations.
pub(super) fn before(files: &[ReadDocument], question: &str) -> String {
    let files = files.iter().map(|file| {
        let title = file.title.as_deref().unwrap_or("file");
        format!("{title}:\n\n{}\n\n", file.text.trim_end())
    });
    files.chain([question.to_owned()]).collect()
}

/// Describes where an answer stands; `None` without an answer.
pub(super) fn place(reading: &Reading) -> Option<String> {
    let ReadSpan { answer, source } = reading.span.as_ref().filter(|_| reading.is_answered)?;
    let source = match source {
        ReadSource::Instructions => "the instructions".to_owned(),
        ReadSource::Message(index) => format!("message {}", index + 1),
        ReadSource::Document { title: Some(title), .. } => title.clone(),
        ReadSource::Document { index, title: None } => format!("document {}", index + 1),
    };
    let [start, end] = [answer.chars.start, answer.chars.end];
    Some(format!("{source}, characters {start} to {end}; score {:.2}", answer.score))
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::Answer;

    use super::*;

    #[test]
    fn files_stand_before_the_question() {
        let file = ReadDocument { title: Some("a.md".to_owned()), text: "# A\n".to_owned() };
        assert_eq!(before(&[file], "Why?"), "a.md:\n\n# A\n\nWhy?");
        assert_eq!(before(&[], "Why?"), "Why?");
    }

    #[test]
    fn an_answer_has_a_place() {
        let answer = Answer { text: "b".to_owned(), bytes: 3..4, chars: 2..3, score: 0.75 };
        let title = Some("a.md".to_owned());
        let span = Some(ReadSpan { answer, source: ReadSource::Document { index: 0, title } });
        let reading = Reading { span, is_answered: true, no_answer: 0.1 };
        assert_eq!(place(&reading).unwrap(), "a.md, characters 2 to 3; score 0.75");
        assert_eq!(place(&Reading { is_answered: false, ..reading }), None);
    }
}
