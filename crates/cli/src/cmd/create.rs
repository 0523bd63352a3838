//! `narthex create`: a name of its own for a model, with a system prompt and sampling.

use narthex_gateway::{Error, Gateway};

use crate::{
    args::{CreateArgs, StoreArgs},
    input_file, interrupt,
    modelfile::Modelfile,
    output,
    settings_file::{self, NewName, Setting, SettingValue},
};

/// Writes the name into the settings file.
pub(crate) fn run(gateway: &Gateway, store: &StoreArgs, args: &CreateArgs) -> anyhow::Result<()> {
    let file = args.file.as_ref().map(|path| anyhow::Ok(Modelfile::parse(&input_file::text(path)?)?));
    let file = file.transpose()?.unwrap_or_default();
    for ignored in &file.ignored {
        output::note(format!("warning: {ignored} has no effect here"));
    }
    let Some(from) = args.from.as_ref().or(file.from.as_ref()) else {
        return Err(
            Error::invalid("from", "expected a model in --from or in the Modelfile, found none").into()
        );
    };
    if gateway.model(&args.name).is_ok() {
        let message = format!("expected a new name, found that of the model {}; choose another", args.name);
        return Err(Error::invalid("name", message).into());
    }
    let model = gateway.model(from)?;

    let path = settings_file::path(store)?;
    let new = NewName {
        name: &args.name,
        from,
        system: args.system.as_deref().or(file.system.as_deref()),
        answers: answers(args, &file),
    };
    gateway.change_settings(&path, |text| settings_file::add_name(&text, &new), interrupt::cancel())?;
    output::note(format!(
        "created {}, which answers with {}; `narthex chat -m {0}` tries it, running servers know it after a restart",
        args.name, model.name
    ));
    Ok(())
}

/// Returns the settings of answers: those of the options, then those of the Modelfile.
fn answers(args: &CreateArgs, file: &Modelfile) -> Vec<Setting> {
    let number = |key: &str, value: Option<String>| {
        let value = value.or_else(|| file.parameters.get(key).cloned());
        value.map(|value| Setting { key: key.to_owned(), value: SettingValue::One(value) })
    };
    let stop = if args.stop.is_empty() { file.stop.clone() } else { args.stop.clone() };
    let stop =
        (!stop.is_empty()).then(|| Setting { key: "stop".to_owned(), value: SettingValue::Several(stop) });
    [
        number("temperature", args.temperature.map(|value| value.to_string())),
        number("top_p", args.top_p.map(|value| value.to_string())),
        number("top_k", args.top_k.map(|value| value.to_string())),
        number("min_p", args.min_p.map(|value| value.to_string())),
        number("repeat_penalty", args.repeat_penalty.map(|value| value.to_string())),
        stop,
    ]
    .into_iter()
    .flatten()
    .collect()
}
