//! The user's settings of pip: index, proxy and certificates, from its environment variables and configuration files.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::source::http::CERTIFICATES;

/// Index of this build, for machines without pip and without settings. The builder of a package may set it; the sources
/// name none.
const BUILD_INDEX: Option<&str> = option_env!("NARTHEX_PACKAGE_INDEX");

/// Maximum size in bytes of a configuration file.
const FILE_LIMIT: u64 = 1 << 20;

/// Variables with the address of the index, of pip and of uv.
const INDEX_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"];

/// Variables with the addresses of more indexes, separated by white space.
const EXTRA_VARIABLES: [&str; 2] = ["PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL"];

/// Variables with a file of certificates, after [`CERTIFICATES`], which applies to all downloads.
const CERTIFICATE_VARIABLES: [&str; 3] = [CERTIFICATES, "PIP_CERT", "REQUESTS_CA_BUNDLE"];

/// Name of a setting of the configuration files in errors.
const CONFIGURATION: &str = "pip's configuration";

/// Settings of the user's package indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IndexSettings {
    /// Addresses of the indexes, in the order in which they are tried.
    pub(super) indexes: Vec<String>,
    /// Address of a proxy, and its setting.
    pub(super) proxy: Option<(String, &'static str)>,
    /// Path of a file with certificates, and its setting.
    pub(super) certificates: Option<(String, &'static str)>,
}

impl IndexSettings {
    /// Reads the settings of this user.
    pub(super) fn from_environment() -> Self {
        let get = |name: &str| env::var(name).ok();
        let dirs = directories::BaseDirs::new();
        let files = configuration_files(&get, dirs.as_ref().map(|dirs| dirs.home_dir()));
        let texts = files.iter().filter_map(|path| {
            let bytes = narthex_files::read(path, FILE_LIMIT).ok()?;
            narthex_files::user_text(bytes).ok()
        });
        Self::new(&get, &texts.collect::<Vec<_>>(), BUILD_INDEX)
    }

    /// Returns the settings of variables and of the texts of configuration files; later files take precedence, and variables
    /// over them. `build_index` is used if nothing names an index.
    pub(crate) fn new(
        get: &dyn Fn(&str) -> Option<String>,
        files: &[String],
        build_index: Option<&str>,
    ) -> Self {
        let options: Vec<ConfigurationOption> = files.iter().flat_map(|text| options(text)).collect();
        let without_index = variable(get, &["PIP_NO_INDEX"]).map(|(value, _)| value);
        if without_index.or_else(|| option(&options, "no-index")).is_some_and(|value| is_true(&value)) {
            return Self::default();
        }

        let index = variable(get, &INDEX_VARIABLES).map(|(value, _)| value);
        let index = index.or_else(|| option(&options, "index-url"));
        let extra = variable(get, &EXTRA_VARIABLES).map(|(value, _)| value);
        let extra = extra.or_else(|| option(&options, "extra-index-url"));
        let mut indexes: Vec<String> = index.or_else(|| build_index.map(str::to_owned)).into_iter().collect();
        indexes.extend(extra.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned));
        Self {
            indexes,
            proxy: variable(get, &["PIP_PROXY"]).or_else(|| configured(&options, "proxy")),
            certificates: variable(get, &CERTIFICATE_VARIABLES).or_else(|| configured(&options, "cert")),
        }
    }
}

/// Returns the value of the first variable that has one, and its name.
fn variable(get: &dyn Fn(&str) -> Option<String>, names: &[&'static str]) -> Option<(String, &'static str)> {
    names.iter().find_map(|name| Some((get(name).filter(|value| !value.trim().is_empty())?, *name)))
}

/// Returns the value of an option in the configuration files.
fn option(options: &[ConfigurationOption], name: &str) -> Option<String> {
    ["download", "global"].into_iter().find_map(|section| {
        let mut named =
            options.iter().rev().filter(|option| option.section == section && option.name == name);
        named.next().map(|option| option.value.clone()).filter(|value| !value.is_empty())
    })
}

/// Returns the value of an option in the configuration files, and the name of its setting.
fn configured(options: &[ConfigurationOption], name: &str) -> Option<(String, &'static str)> {
    option(options, name).map(|value| (value, CONFIGURATION))
}

fn is_true(value: &str) -> bool {
    ["1", "true", "yes", "on", "y", "t"].contains(&value.trim().to_ascii_lowercase().as_str())
}

/// Returns the paths of pip's configuration files, of the system before those of the user. They may not exist.
fn configuration_files(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Vec<PathBuf> {
    let folder = |name: &str| get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = folder("PIP_CONFIG_FILE");
    if named.as_deref().is_some_and(|path| path == Path::new("/dev/null") || path == Path::new("nul")) {
        return Vec::new();
    }

    let mut files = Vec::new();
    if cfg!(windows) {
        files.extend(folder("ProgramData").map(|folder| folder.join("pip").join("pip.ini")));
        files.extend(home.map(|home| home.join("pip").join("pip.ini")));
        files.extend(folder("APPDATA").map(|folder| folder.join("pip").join("pip.ini")));
    } else {
        if cfg!(target_os = "macos") {
            files.push(PathBuf::from("/Library/Application Support/pip/pip.conf"));
        }
        let system = get("XDG_CONFIG_DIRS").filter(|value| !value.is_empty());
        let system = system.unwrap_or_else(|| "/etc/xdg".to_owned());
        files.extend(system.split(':').map(|folder| Path::new(folder).join("pip/pip.conf")));
        files.push(PathBuf::from("/etc/pip.conf"));
        files.extend(home.map(|home| home.join(".pip/pip.conf")));
        let user = folder("XDG_CONFIG_HOME").or_else(|| Some(home?.join(".config")));
        files.extend(user.map(|folder| folder.join("pip/pip.conf")));
        if cfg!(target_os = "macos") {
            files.extend(home.map(|home| home.join("Library/Application Support/pip/pip.conf")));
        }
    }
    files.extend(named);
    files
}

/// An option of a configuration file.
struct ConfigurationOption {
    section: String,
    /// Name in lower case, with `-` in place of `_`.
    name: String,
    /// Value; further lines of it are separated by line breaks.
    value: String,
}

/// Reads the options of a file in the format of Python's `configparser`. Other lines are skipped.
fn options(text: &str) -> Vec<ConfigurationOption> {
    let mut options: Vec<ConfigurationOption> = Vec::new();
    let mut section = String::new();
    let mut continues = false;

    for line in text.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if continues && line.starts_with(|c: char| c.is_whitespace()) {
            if let Some(option) = options.last_mut() {
                option.value = format!("{}\n{content}", option.value).trim().to_owned();
            }
            continue;
        }
        if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
            continues = false;
            continue;
        }
        let Some((name, value)) = content.split_once(['=', ':']) else { continue };
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        options.push(ConfigurationOption { section: section.clone(), name, value: value.trim().to_owned() });
        continues = true;
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexes(variables: &[(&str, &str)], files: &[&str], build: Option<&str>) -> Vec<String> {
        settings(variables, files, build).indexes
    }

    fn settings(variables: &[(&str, &str)], files: &[&str], build: Option<&str>) -> IndexSettings {
        let get = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let files: Vec<String> = files.iter().map(|text| (*text).to_owned()).collect();
        IndexSettings::new(&get, &files, build)
    }

    #[test]
    fn variables_precede_files_and_files_precede_the_build() {
        let user = "[global]\nindex-url = https://user/simple\n";
        let system = "[global]\nindex_url: https://system/simple\n[download]\n# no\ntimeout = 3\n";
        assert_eq!(indexes(&[], &[], None), [""; 0]);
        assert_eq!(indexes(&[], &[], Some("https://build")), ["https://build"]);
        assert_eq!(indexes(&[], &[system], Some("https://build")), ["https://system/simple"]);
        assert_eq!(indexes(&[], &[system, user], None), ["https://user/simple"]);
        assert_eq!(indexes(&[("PIP_INDEX_URL", "https://pip")], &[user], None), ["https://pip"]);
        assert_eq!(indexes(&[("UV_DEFAULT_INDEX", "https://uv")], &[], None), ["https://uv"]);
        // The command's section precedes the global one, in whichever file it is.
        let download = "[download]\nindex-url = https://download\n";
        assert_eq!(indexes(&[], &[download, user], None), ["https://download"]);
        assert_eq!(indexes(&[("PIP_NO_INDEX", "1")], &[user], Some("https://build")), [""; 0]);
    }

    #[test]
    fn lists_proxies_and_certificates_are_read() {
        let text = "[global]\r\nextra-index-url =\r\n    https://a\r\n    # no\r\n    https://b\r\n\
                    proxy = http://p:1\r\ncert = /c.pem\r\n";
        let found = settings(&[("PIP_INDEX_URL", "https://i")], &[text], None);
        assert_eq!(found.indexes, ["https://i", "https://a", "https://b"]);
        assert_eq!(found.proxy, Some(("http://p:1".to_owned(), CONFIGURATION)));
        assert_eq!(found.certificates, Some(("/c.pem".to_owned(), CONFIGURATION)));
        let variables =
            [("PIP_EXTRA_INDEX_URL", "https://x https://y"), ("PIP_PROXY", "q"), ("PIP_CERT", "/d")];
        let found = settings(&variables, &[text], None);
        assert_eq!(found.indexes, ["https://x", "https://y"]);
        assert_eq!(found.proxy, Some(("q".to_owned(), "PIP_PROXY")));
        assert_eq!(found.certificates, Some(("/d".to_owned(), "PIP_CERT")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn configuration_files_are_where_pip_has_them() {
        let files = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let paths = configuration_files(&get, Some(Path::new("/h")));
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let usual = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", "/h/.pip/pip.conf", "/h/.config/pip/pip.conf"];
        assert_eq!(files(&[]), usual);
        let named = [("PIP_CONFIG_FILE", "/n"), ("XDG_CONFIG_HOME", "/c"), ("XDG_CONFIG_DIRS", "/x:/y")];
        assert_eq!(
            files(&named),
            [
                "/x/pip/pip.conf",
                "/y/pip/pip.conf",
                "/etc/pip.conf",
                "/h/.pip/pip.conf",
                "/c/pip/pip.conf",
                "/n"
            ]
        );
        assert!(files(&[("PIP_CONFIG_FILE", "/dev/null")]).is_empty());
    }
}
