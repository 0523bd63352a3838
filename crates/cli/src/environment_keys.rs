//! API keys from the environment, for containers.

use std::ffi::OsString;

use anyhow::{Context, anyhow, ensure};
use narthex_gateway::{
    Error,
    keys::{ADMIN_KEY_VARIABLE, ApiKey, KEY_FILE_VARIABLE, KEY_VARIABLE, KEYS_VARIABLE, KeyRole},
};

use crate::input_file;

/// Returns the keys in the environment's variables. An error contains the name of the variable, never its value.
///
/// A variable that is not UTF-8 and a file without keys are errors: a server without keys would be open.
pub(crate) fn read(get: &dyn Fn(&str) -> Option<OsString>) -> anyhow::Result<Vec<ApiKey>> {
    let mut keys = Vec::new();
    if let Some(secret) = variable(get, KEY_VARIABLE)? {
        keys.push(key(KEY_VARIABLE, secret.trim(), KeyRole::User)?);
    }

    if let Some(secrets) = variable(get, KEYS_VARIABLE)? {
        let mut secrets = secrets
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|secret| !secret.is_empty())
            .peekable();
        ensure!(secrets.peek().is_some(), "{KEYS_VARIABLE} contains no key; separate keys with commas");
        for secret in secrets {
            keys.push(key(KEYS_VARIABLE, secret, KeyRole::User)?);
        }
    }

    if let Some(path) = variable(get, KEY_FILE_VARIABLE)? {
        let text = input_file::text(path.as_ref()).context(KEY_FILE_VARIABLE)?;
        let mut secrets = text.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
        ensure!(
            secrets.peek().is_some(),
            "{KEY_FILE_VARIABLE}: {path} contains no key; write one key on each line"
        );
        for secret in secrets {
            keys.push(key(KEY_FILE_VARIABLE, secret, KeyRole::User)?);
        }
    }

    if let Some(secret) = variable(get, ADMIN_KEY_VARIABLE)? {
        keys.push(key(ADMIN_KEY_VARIABLE, secret.trim(), KeyRole::Admin)?);
    }
    Ok(keys)
}

/// Returns the text of a variable, unless it is blank.
fn variable(get: &dyn Fn(&str) -> Option<OsString>, name: &str) -> anyhow::Result<Option<String>> {
    let text = get(name).map(|value| value.into_string().map_err(|_| anyhow!("{name} is not UTF-8")));
    Ok(text.transpose()?.filter(|value| !value.trim().is_empty()))
}

fn key(origin: &str, secret: &str, role: KeyRole) -> anyhow::Result<ApiKey> {
    Ok(ApiKey::from_secret(origin, secret, role).map_err(Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [&str; 4] =
        ["first-secret-0001", "second-secret-002", "third-secret-0003", "fourth-secret-004"];

    #[test]
    fn keys_come_from_variables_and_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let [a, b, c, d] = SECRETS;
        std::fs::write(&file, format!("{c}\n\n{d}\n")).unwrap();
        let get = |name: &str| match name {
            KEY_VARIABLE => Some(format!(" {a}\n").into()),
            KEYS_VARIABLE => Some(format!("{b}, {c}").into()),
            KEY_FILE_VARIABLE => Some(file.clone().into()),
            ADMIN_KEY_VARIABLE => Some(d.into()),
            _ => None,
        };
        let keys = read(&get).unwrap();
        let origins: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(
            origins,
            [
                KEY_VARIABLE,
                KEYS_VARIABLE,
                KEYS_VARIABLE,
                KEY_FILE_VARIABLE,
                KEY_FILE_VARIABLE,
                ADMIN_KEY_VARIABLE
            ]
        );
        let admins = keys.iter().filter(|key| key.limits.role == KeyRole::Admin).count();
        assert_eq!((admins, keys[1].hash == keys[0].hash, keys[3].hash == keys[2].hash), (1, false, true));
        assert!(read(&|_| None).unwrap().is_empty() && read(&|_| Some(OsString::new())).unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_variable_and_not_the_secret() {
        let error = read(&|name| (name == KEYS_VARIABLE).then(|| "short".into())).unwrap_err().to_string();
        assert!(error.contains(KEYS_VARIABLE) && !error.contains("short"), "{error}");
        let error = read(&|name| (name == KEY_FILE_VARIABLE).then(|| "/no/such".into())).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("/no/such") && error.contains(KEY_FILE_VARIABLE), "{error}");
    }

    #[test]
    fn settings_without_a_usable_key_do_not_open_the_server() {
        let empty = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(empty.path(), "\n \n").unwrap();
        let error = read(&|name| (name == KEY_FILE_VARIABLE).then(|| empty.path().into())).unwrap_err();
        assert!(error.to_string().contains("contains no key"), "{error}");
        let error = read(&|name| (name == KEYS_VARIABLE).then(|| ", ".into())).unwrap_err();
        assert!(error.to_string().contains("contains no key"), "{error}");
        #[cfg(unix)]
        for variable in [KEY_VARIABLE, KEYS_VARIABLE, KEY_FILE_VARIABLE, ADMIN_KEY_VARIABLE] {
            let latin = || std::os::unix::ffi::OsStringExt::from_vec(b"caf\xe9-secret-key-0123".to_vec());
            let error = read(&|name| (name == variable).then(latin)).unwrap_err().to_string();
            assert_eq!(error, format!("{variable} is not UTF-8"));
        }
    }
}
