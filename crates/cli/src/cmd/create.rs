//! `narthex create`: custom models, which are existing models with another name, system prompt and sampling.

use narthex_gateway::{Error, Gateway};

use crate::{
    args::{CreateArgs, SamplingArgs, StoreArgs},
    input_file, interrupt,
    modelfile::Modelfile,
    output,
    settings_file::{self, CustomModel, Setting, SettingValue},
};

/// Writes the custom model into the settings file.
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
    let custom = CustomModel {
        name: &args.name,
        from,
        system: args.system.as_deref().or(file.system.as_deref()),
        answers: answers(args, &file),
    };
    gateway.change_settings(
        &path,
        |text| settings_file::add_custom_model(&text, &custom),
        interrupt::cancel(),
    )?;
    output::note(format!(
        "created {}, which answers with {}; `narthex chat -m {0}` tries it, a running server knows it after SIGHUP or a restart",
        args.name, model.name
    ));
    Ok(())
}

/// Returns the settings of answers: those of the options, then those of the Modelfile.
fn answers(args: &CreateArgs, file: &Modelfile) -> Vec<Setting> {
    let SamplingArgs { stop, .. } = &args.sampling;
    let numbers = args.sampling.numbers().into_iter().filter_map(|(key, value)| {
        let value = value.or_else(|| file.parameters.get(key).cloned())?;
        Some(Setting { key: key.to_owned(), value: SettingValue::One(value) })
    });
    let stop = if stop.is_empty() { &file.stop } else { stop };
    let stop = (!stop.is_empty())
        .then(|| Setting { key: "stop".to_owned(), value: SettingValue::Several(stop.clone()) });
    numbers.chain(stop).collect()
}
