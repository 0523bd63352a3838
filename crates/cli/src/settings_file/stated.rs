//! Settings of `--setting` and `NARTHEX_SETTING`, in the notation of the settings file. They take precedence over the file.

use std::env;

use narthex_gateway::Error;
use toml_edit::{Document, DocumentMut, TableLike};

use super::read;
use crate::args::StoreArgs;

/// Variable with settings in the notation of the file.
const VARIABLE: &str = "NARTHEX_SETTING";

/// Name of the option in errors.
const OPTION: &str = "--setting";

/// Settings outside the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StatedSettings {
    /// The option, or the name of the variable.
    pub(crate) origin: &'static str,
    /// The settings in the notation of the file.
    pub(crate) text: String,
}

impl StatedSettings {
    /// Returns the settings of the variable and of the options. Later ones take precedence over earlier ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a text that is not TOML.
    pub(crate) fn find(store: &StoreArgs) -> Result<Vec<Self>, Error> {
        let variable = match env::var(VARIABLE) {
            Ok(text) => Some(Self { origin: VARIABLE, text }),
            Err(env::VarError::NotPresent) => None,
            Err(env::VarError::NotUnicode(_)) => {
                return Err(invalid(VARIABLE, "expected UTF-8, found other bytes"));
            }
        };
        let options = store.setting.iter().map(|text| Self { origin: OPTION, text: text.clone() });
        let stated = variable.into_iter().filter(|stated| !stated.text.trim().is_empty()).chain(options);
        stated.map(Self::checked).collect()
    }

    fn checked(self) -> Result<Self, Error> {
        match Document::parse(self.text.as_str()) {
            Ok(_) => Ok(self),
            Err(error) => {
                let reason = error.message().trim().replace('\n', ", ");
                let example = r#"expected a key and a value as in models."smollm2:135m".pin=true"#;
                Err(invalid(self.origin, &format!("{example}, found {:?}: {reason}", self.text)))
            }
        }
    }
}

fn invalid(origin: &str, reason: &str) -> Error {
    Error::Invalid { param: "setting", message: format!("{origin}: {reason}") }
}

/// Adds settings to those of a file without faults.
///
/// # Errors
/// [`Error::Invalid`] with the keys that are wrong.
pub(super) fn merge(file: &str, stated: &[StatedSettings]) -> Result<super::Settings, Error> {
    let mut document = file.parse::<DocumentMut>().unwrap_or_default();
    for StatedSettings { text, .. } in stated {
        let added = text.parse::<DocumentMut>().unwrap_or_default();
        insert(document.as_table_mut(), added.as_table());
    }
    read(&document.to_string()).map_err(|faults| {
        let reasons: Vec<String> =
            faults.iter().map(|fault| format!("{}: {}", fault.key, fault.reason)).collect();
        let origins: Vec<&str> = stated.iter().map(|stated| stated.origin).collect();
        let is_variable = origins.iter().all(|origin| *origin == VARIABLE);
        invalid(if is_variable { VARIABLE } else { OPTION }, &reasons.join("; "))
    })
}

/// Inserts the entries of a table into another. Tables of the same name become one.
fn insert(into: &mut dyn TableLike, added: &dyn TableLike) {
    for (key, item) in added.iter() {
        match (into.get_mut(key).and_then(|item| item.as_table_like_mut()), item.as_table_like()) {
            (Some(into), Some(added)) => insert(into, added),
            _ => drop(into.insert(key, item.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn stated(texts: &[&str]) -> Vec<StatedSettings> {
        let set = texts.iter().flat_map(|text| ["--setting", text]);
        let args = Args::try_parse_from(["narthex", "serve"].into_iter().chain(set)).unwrap();
        StatedSettings::find(&args.store).unwrap()
    }

    #[test]
    fn settings_outside_the_file_come_before_it() {
        let file =
            "[limits]\nslots = 3\nmax_queue = 4\n[models.\"smollm2:135m\"]\npin = true\nsystem = \"A.\"\n";
        let stated = stated(&[
            "limits.slots=5",
            "models.\"smollm2:135m\".system=\"B.\"",
            "aliases.gpt-4o = \"smollm2:135m\"",
            "limits.slots=6",
            "upstreams.box = { url = \"http://box\" }",
        ]);
        let settings = merge(file, &stated).unwrap();
        let options: Vec<_> = settings.options.iter().flat_map(|setting| setting.arguments()).collect();
        assert_eq!(options, ["--slots=6", "--max-queue=4"]);
        let model = &settings.models["smollm2:135m"];
        assert_eq!((model.residence.pinned, model.answers.system.as_deref()), (true, Some("B.")));
        assert_eq!(settings.aliases["gpt-4o"], "smollm2:135m");
        assert!(settings.upstreams.contains_key("box"));
    }

    #[test]
    fn wrong_settings_outside_the_file_are_named() {
        let error = merge("", &stated(&["models.a.pin=1"])).unwrap_err().to_string();
        assert!(error.contains("--setting: models.\"a\".pin: expected true or false"), "{error}");
        let args =
            Args::try_parse_from(["narthex", "serve", "--setting", "models.a.system=Arr you"]).unwrap();
        let error = StatedSettings::find(&args.store).unwrap_err().to_string();
        assert!(error.contains("--setting: expected a key and a value as in models."), "{error}");
    }
}
