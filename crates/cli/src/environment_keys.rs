//! API keys from the environment, for containers.

use anyhow::Context;
use narthex_gateway::{
    Error,
    keys::{ADMIN_KEY_VARIABLE, ApiKey, KEY_FILE_VARIABLE, KEY_VARIABLE, KEYS_VARIABLE, KeyRole},
};

use crate::input_file;

/// Returns the keys in the environment's variables. An error contains the name of the variable, never its value.
pub(crate) fn read(get: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Vec<ApiKey>> {
    let variable = |name: &str| get(name).filter(|value| !value.trim().is_empty());
    let mut keys = Vec::new();
    let mut add = |origin: &str, secret: &str, role: KeyRole| -> anyhow::Result<()> {
        keys.push(ApiKey::from_secret(origin, secret, role).map_err(Error::from)?);
        Ok(())
    };
    if let Some(secret) = variable(KEY_VARIABLE) {
        add(KEY_VARIABLE, secret.trim(), KeyRole::User)?;
    }
    if let Some(secrets) = variable(KEYS_VARIABLE) {
        let separators = |c: char| c == ',' || c.is_whitespace();
        for secret in secrets.split(separators).filter(|secret| !secret.is_empty()) {
            add(KEYS_VARIABLE, secret, KeyRole::User)?;
        }
    }
    if let Some(path) = variable(KEY_FILE_VARIABLE) {
        let bytes = input_file::read(path.as_ref()).context(KEY_FILE_VARIABLE)?;
        for secret in String::from_utf8_lossy(&bytes).lines().map(str::trim).filter(|line| !line.is_empty()) {
            add(KEY_FILE_VARIABLE, secret, KeyRole::User)?;
        }
    }
    if let Some(secret) = variable(ADMIN_KEY_VARIABLE) {
        add(ADMIN_KEY_VARIABLE, secret.trim(), KeyRole::Admin)?;
    }
    Ok(keys)
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
            KEY_VARIABLE => Some(format!(" {a}\n")),
            KEYS_VARIABLE => Some(format!("{b}, {c}")),
            KEY_FILE_VARIABLE => Some(file.display().to_string()),
            ADMIN_KEY_VARIABLE => Some(d.to_owned()),
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
        assert!(read(&|_| None).unwrap().is_empty() && read(&|_| Some(String::new())).unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_variable_and_not_the_secret() {
        let error =
            read(&|name| (name == KEYS_VARIABLE).then(|| "short".to_owned())).unwrap_err().to_string();
        assert!(error.contains(KEYS_VARIABLE) && !error.contains("short"), "{error}");
        let error = read(&|name| (name == KEY_FILE_VARIABLE).then(|| "/no/such".to_owned())).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("/no/such") && error.contains(KEY_FILE_VARIABLE), "{error}");
    }
}
