//! Changes of the settings file that keep its comments and its order.

use anyhow::{Context, bail};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

use super::{Setting, SettingValue, document};
use narthex_gateway::AnswerSettings;

/// An existing model with another name and other settings of its answers.
pub(crate) struct CustomModel<'a> {
    pub(crate) name: &'a str,
    pub(crate) from: &'a str,
    pub(crate) system: Option<&'a str>,
    pub(crate) answers: Vec<Setting>,
}

/// Returns the entries of the settings file for answers, without the system prompt.
pub(crate) fn answer_entries(answers: &AnswerSettings) -> Vec<Setting> {
    let numbers = answers.sampling.stated().map(|(name, value)| {
        let key = if name == "repetition_penalty" { "repeat_penalty" } else { name };
        Setting { key: key.to_owned(), value: SettingValue::One(value) }
    });
    let stop = (!answers.stop.is_empty())
        .then(|| Setting { key: "stop".to_owned(), value: SettingValue::Several(answers.stop.clone()) });
    numbers.chain(stop).collect()
}

/// Returns the text of the settings file with a custom model, which replaces an earlier one of this name.
pub(crate) fn add_custom_model(text: &str, custom: &CustomModel<'_>) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    let models = document.entry("models").or_insert_with(implicit_table).as_table_like_mut();
    let models = models.context("models: expected a table, found another value")?;
    let mut entry = Table::new();
    entry["from"] = value(custom.from);
    if let Some(system) = custom.system {
        entry["system"] = value(system);
    }
    for setting in &custom.answers {
        entry[setting.key.as_str()] = Item::Value(toml_value(&setting.value));
    }
    models.insert(custom.name, Item::Table(entry));
    finish(&document)
}

/// Returns the text of the settings file with an additional name of a model.
pub(crate) fn add_name(text: &str, name: &str, model: &str) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    table(&mut document, "aliases")?.insert(name, value(model));
    finish(&document)
}

/// Returns the text of the settings file in which a model is pinned, or not any more.
pub(crate) fn pin(text: &str, model: &str, pinned: bool) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    let models = document.entry("models").or_insert_with(implicit_table).as_table_like_mut();
    let models = models.context("models: expected a table, found another value")?;
    if models.get(model).is_none() {
        models.insert(model, Item::Table(Table::new()));
    }
    let entry = models.get_mut(model).and_then(Item::as_table_like_mut);
    let entry = entry.with_context(|| format!("models.{model:?}: expected a table, found another value"))?;
    if pinned {
        entry.insert("pin", value(true));
    } else {
        entry.remove("pin");
    }
    if entry.is_empty() {
        models.remove(model);
    }
    finish(&document)
}

/// Returns the text of the settings file with another default model, or without one.
pub(crate) fn set_default_model(text: &str, model: Option<&str>) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    let server = table(&mut document, "server")?;
    match model {
        Some(model) => server.insert("default_model", value(model)),
        None => server.remove("default_model"),
    };
    finish(&document)
}

/// Returns a table of the settings file, which is added if it is missing.
fn table<'a>(document: &'a mut DocumentMut, name: &str) -> anyhow::Result<&'a mut dyn TableLike> {
    let table = document.entry(name).or_insert_with(|| Item::Table(Table::new())).as_table_like_mut();
    table.with_context(|| format!("{name}: expected a table, found another value"))
}

/// Returns whether the settings define an alias or a custom model of this name.
pub(crate) fn has_name(text: &str, name: &str) -> anyhow::Result<bool> {
    let document = parse(text)?;
    let [alias, model] = ["aliases", "models"]
        .map(|table| document.get(table).and_then(Item::as_table_like).and_then(|table| table.get(name)));
    let model = model.and_then(Item::as_table_like);
    Ok(alias.is_some() || model.is_some_and(|model| model.contains_key("from")))
}

/// Returns the text of the settings file without the alias or custom model of this name.
pub(crate) fn remove_name(text: &str, name: &str) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    for table in ["aliases", "models"] {
        if let Some(table) = document.get_mut(table).and_then(Item::as_table_like_mut) {
            table.remove(name);
        }
    }
    finish(&document)
}

fn parse(text: &str) -> anyhow::Result<DocumentMut> {
    text.parse().context("the settings file is malformed; `narthex config check` lists every fault")
}

/// Returns the text of the settings, which must be valid: nothing wrong is written.
fn finish(document: &DocumentMut) -> anyhow::Result<String> {
    let text = document.to_string();
    match document::read(&text) {
        Ok(_) => Ok(text),
        Err(faults) => bail!("{}", faults.first().map(ToString::to_string).unwrap_or_default()),
    }
}

fn implicit_table() -> Item {
    let mut table = Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

fn toml_value(value: &SettingValue) -> Value {
    match value {
        SettingValue::One(text) => scalar(text),
        SettingValue::Several(texts) => Value::Array(texts.iter().map(String::as_str).collect::<Array>()),
        SettingValue::Switch(switch) => (*switch).into(),
    }
}

/// Returns a number, or else a text.
fn scalar(text: &str) -> Value {
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(number), _) => number.into(),
        (Err(_), Ok(number)) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_added_and_removed_beside_comments() {
        let text = "# mine\n[limits]\nslots = 2 # few\n";
        let answers =
            vec![Setting { key: "temperature".to_owned(), value: SettingValue::One("0.5".to_owned()) }];
        let custom = CustomModel { name: "pirate", from: "smollm2:135m", system: Some("Arr."), answers };
        let added = add_custom_model(text, &custom).unwrap();
        let expect = "[models.pirate]\nfrom = \"smollm2:135m\"\nsystem = \"Arr.\"\ntemperature = 0.5\n";
        assert_eq!(added, format!("{text}\n{expect}"));
        assert!(has_name(&added, "pirate").unwrap() && !has_name(text, "pirate").unwrap());
        assert_eq!(remove_name(&added, "pirate").unwrap(), text);
    }

    #[test]
    fn names_pins_and_the_default_model_are_changed_in_place() {
        let text = "[server]\nport = 9 # mine\n";
        let added = add_name(text, "gpt-4o", "smollm2:135m").unwrap();
        assert_eq!(added, format!("{text}\n[aliases]\ngpt-4o = \"smollm2:135m\"\n"));
        let pinned = pin(text, "smollm2:135m", true).unwrap();
        assert_eq!(pinned, format!("{text}\n[models.\"smollm2:135m\"]\npin = true\n"));
        assert_eq!(pin(&pinned, "smollm2:135m", false).unwrap(), text);
        let with_context = format!("{text}\n[models.\"smollm2:135m\"]\ncontext = 99\n");
        let pinned = pin(&with_context, "smollm2:135m", true).unwrap();
        assert_eq!(pinned, format!("{with_context}pin = true\n"));
        assert_eq!(pin(&pinned, "smollm2:135m", false).unwrap(), with_context);
        let default = set_default_model(text, Some("smollm2:135m")).unwrap();
        assert_eq!(default, format!("{text}default_model = \"smollm2:135m\"\n"));
        assert_eq!(set_default_model(&default, None).unwrap(), text);
    }

    #[test]
    fn a_file_with_faults_is_not_changed() {
        let custom = CustomModel { name: "a", from: "b", system: None, answers: Vec::new() };
        let error = add_custom_model("[limits]\nslots = 0\n", &custom).unwrap_err().to_string();
        assert!(error.contains("2:9: limits.slots: expected"), "{error}");
        assert!(add_custom_model("[limits", &custom).is_err());
    }
}
