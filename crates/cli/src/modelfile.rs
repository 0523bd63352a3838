//! Ollama's Modelfiles: instructions of one line, or with a text between three quotation marks.

use std::collections::BTreeMap;

use narthex_gateway::Error;

use crate::settings_file::ANSWERS;

/// Content of a Modelfile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Modelfile {
    /// Model that answers.
    pub(crate) from: Option<String>,
    /// System prompt.
    pub(crate) system: Option<String>,
    /// Sampling, by name.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Stop strings.
    pub(crate) stop: Vec<String>,
    /// Instructions and parameters that have no effect.
    pub(crate) ignored: Vec<String>,
}

impl Modelfile {
    /// Reads a Modelfile.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the line of an unknown instruction, or of one that would change the model.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut file = Self::default();
        let mut lines = text.lines().enumerate();

        while let Some((index, line)) = lines.next() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |message: String| Error::invalid("file", format!("line {}: {message}", index + 1));
            let (instruction, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = match rest.trim().strip_prefix("\"\"\"") {
                None => unquoted(rest.trim()).to_owned(),
                Some(first) => {
                    let rest = lines.by_ref().map(|(_, line)| line);
                    between_quotes(first, rest)
                        .ok_or_else(|| bad("expected closing \"\"\", found the end".to_owned()))?
                }
            };
            match instruction.to_ascii_uppercase().as_str() {
                "FROM" => file.from = Some(value),
                "SYSTEM" => file.system = Some(value),
                "PARAMETER" => file.parameter(&value).map_err(bad)?,
                "LICENSE" | "REQUIRES" => file.ignored.push(instruction.to_owned()),
                known @ ("TEMPLATE" | "ADAPTER" | "MESSAGE") => {
                    return Err(bad(format!(
                        "expected FROM, SYSTEM or PARAMETER, found {known}, which this version does not support; leave it out"
                    )));
                }
                _ => {
                    return Err(bad(format!(
                        "expected an instruction such as FROM or PARAMETER, found {instruction:?}"
                    )));
                }
            }
        }
        Ok(file)
    }

    fn parameter(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text
            .split_once(char::is_whitespace)
            .ok_or_else(|| format!("expected PARAMETER with a name and a value, found {text:?}"))?;
        let value = unquoted(value.trim()).to_owned();
        match name {
            "stop" => self.stop.push(value),
            name if ANSWERS.contains(&name) => {
                if value.parse::<f64>().is_err() {
                    return Err(format!("expected a number for {name}, found {value:?}"));
                }
                self.parameters.insert(name.to_owned(), value);
            }
            name => self.ignored.push(format!("PARAMETER {name}")),
        }
        Ok(())
    }
}

/// Returns a text without the quotation marks around it.
fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// Returns the text up to three quotation marks; `None` without them.
fn between_quotes<'a>(first: &str, rest: impl Iterator<Item = &'a str>) -> Option<String> {
    if let Some((text, _)) = first.split_once("\"\"\"") {
        return Some(text.to_owned());
    }
    let mut text = first.to_owned();
    for line in rest {
        if !text.is_empty() {
            text.push('\n');
        }
        match line.split_once("\"\"\"") {
            Some((last, _)) => return Some(text + last).map(|text| text.trim_end().to_owned()),
            None => text.push_str(line),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modelfile_is_read() {
        let text = "# A pirate\nFROM llama3.2\nPARAMETER temperature 0.8\nparameter stop \"Arr!\"\nPARAMETER num_ctx 4096\n\
                    SYSTEM \"\"\"You are\n  a pirate.\n\"\"\"\nLICENSE MIT\n";
        let file = Modelfile::parse(text).unwrap();
        assert_eq!(file.from.as_deref(), Some("llama3.2"));
        assert_eq!(file.system.as_deref(), Some("You are\n  a pirate."));
        assert_eq!(
            (file.parameters["temperature"].as_str(), file.stop.as_slice()),
            ("0.8", &["Arr!".to_owned()][..])
        );
        assert_eq!(file.ignored, ["PARAMETER num_ctx", "LICENSE"]);
        assert_eq!(Modelfile::parse("SYSTEM \"\"\"a\"\"\"").unwrap().system.as_deref(), Some("a"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_line() {
        let check = |text: &str, expect: &str| {
            let error = Modelfile::parse(text).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("FROM a\nTEMPLATE x", "line 2: expected FROM, SYSTEM or PARAMETER, found TEMPLATE");
        check("FORM a", "line 1: expected an instruction such as FROM or PARAMETER, found \"FORM\"");
        check("PARAMETER temperature hot", "line 1: expected a number for temperature, found \"hot\"");
        check("PARAMETER x", "line 1: expected PARAMETER with a name and a value");
        check("SYSTEM \"\"\"a\nb", "line 1: expected closing");
    }
}
