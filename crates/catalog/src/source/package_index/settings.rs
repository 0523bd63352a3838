//! The user's settings of pip and uv: the indexes of both, and pip's proxy and certificates, from environment variables and
//! configuration files. Neither program is run.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::source::http::CERTIFICATES;

/// Index of this build, for machines without pip and without settings. The builder of a package may set it; the sources
/// name none.
const BUILD_INDEX: Option<&str> = option_env!("NARTHEX_PACKAGE_INDEX");

/// Maximum size in bytes of a configuration file.
const FILE_LIMIT: u64 = 1 << 20;

/// Variables with the address of the index, of pip and of uv.
const INDEX_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"];

/// Variables with the addresses of more indexes, separated by white space. uv's may have names, as in `name=https://…`.
const EXTRA_VARIABLES: [&str; 3] = ["PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"];

/// Variables with a file of certificates, after [`CERTIFICATES`], which applies to all downloads.
const CERTIFICATE_VARIABLES: [&str; 3] = [CERTIFICATES, "PIP_CERT", "REQUESTS_CA_BUNDLE"];

/// Source that errors name for a setting from pip's configuration files.
const CONFIGURATION: &str = "pip's settings";

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
        let uv_files = uv_files(&get, dirs.as_ref().map(|dirs| dirs.home_dir()));
        let texts = ConfigurationTexts { pip: texts(&files), uv: texts(&uv_files) };
        Self::new(&get, &texts, BUILD_INDEX)
    }

    /// Returns the settings of variables and of the texts of configuration files; later files take precedence, pip's over
    /// uv's, and variables over them. `build_index` is used if nothing names an index.
    pub(crate) fn new(
        get: &dyn Fn(&str) -> Option<String>,
        texts: &ConfigurationTexts,
        build_index: Option<&str>,
    ) -> Self {
        let options: Vec<ConfigurationOption> = texts.pip.iter().flat_map(|text| options(text)).collect();
        let uv_files = texts.uv.iter().rev().filter_map(|text| toml::from_str::<UvFile>(text).ok());
        let (uv_index, uv_more) = uv_files.reduce(UvFile::over).unwrap_or_default().indexes();
        let without_index = variable(get, &["PIP_NO_INDEX"]).map(|(value, _)| value);
        if without_index.or_else(|| option(&options, "no-index")).is_some_and(|value| is_true(&value)) {
            return Self::default();
        }

        let index = variable(get, &INDEX_VARIABLES).map(|(value, _)| value);
        let index = index.or_else(|| option(&options, "index-url")).or(uv_index);
        let extra = variable(get, &EXTRA_VARIABLES).map(|(value, _)| value);
        let extra = extra.or_else(|| option(&options, "extra-index-url"));
        let mut indexes: Vec<String> = index.or_else(|| build_index.map(str::to_owned)).into_iter().collect();
        match extra {
            Some(list) => indexes.extend(list.split_whitespace().map(|entry| without_name(entry).to_owned())),
            None => indexes.extend(uv_more),
        }
        Self {
            indexes,
            proxy: variable(get, &["PIP_PROXY"]).or_else(|| configured(&options, "proxy")),
            certificates: variable(get, &CERTIFICATE_VARIABLES).or_else(|| configured(&options, "cert")),
        }
    }
}

/// Texts of configuration files, of the system before those of the user.
#[derive(Debug, Default)]
pub(crate) struct ConfigurationTexts {
    pub(crate) pip: Vec<String>,
    pub(crate) uv: Vec<String>,
}

/// Returns the texts of the files that exist.
fn texts(files: &[PathBuf]) -> Vec<String> {
    let texts = files.iter().filter_map(|path| {
        let bytes = narthex_files::read(path, FILE_LIMIT).ok()?;
        narthex_files::user_text(bytes).ok()
    });
    texts.collect()
}

/// Returns the address of an index without the name that uv allows before it.
fn without_name(entry: &str) -> &str {
    match entry.split_once('=') {
        Some((name, address)) if !name.contains("://") => address,
        _ => entry,
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

/// Returns the path in a variable, if there is one.
fn path_of(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<PathBuf> {
    get(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the paths of pip's configuration files, of the system before those of the user. They may not exist.
fn configuration_files(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Vec<PathBuf> {
    let named = path_of(get, "PIP_CONFIG_FILE");
    if named.as_deref().is_some_and(|path| path == Path::new("/dev/null") || path == Path::new("nul")) {
        return Vec::new();
    }

    let mut files = Vec::new();
    if cfg!(windows) {
        files.extend(path_of(get, "ProgramData").map(|folder| folder.join("pip").join("pip.ini")));
        files.extend(home.map(|home| home.join("pip").join("pip.ini")));
        files.extend(path_of(get, "APPDATA").map(|folder| folder.join("pip").join("pip.ini")));
    } else {
        if cfg!(target_os = "macos") {
            files.push(PathBuf::from("/Library/Application Support/pip/pip.conf"));
        }
        let system = get("XDG_CONFIG_DIRS").filter(|value| !value.is_empty());
        let system = system.unwrap_or_else(|| "/etc/xdg".to_owned());
        files.extend(system.split(':').map(|folder| Path::new(folder).join("pip/pip.conf")));
        files.push(PathBuf::from("/etc/pip.conf"));
        files.extend(home.map(|home| home.join(".pip/pip.conf")));
        let user = path_of(get, "XDG_CONFIG_HOME").or_else(|| Some(home?.join(".config")));
        files.extend(user.map(|folder| folder.join("pip/pip.conf")));
        if cfg!(target_os = "macos") {
            files.extend(home.map(|home| home.join("Library/Application Support/pip/pip.conf")));
        }
    }
    files.extend(named);
    files
}

/// Returns the paths of uv's configuration files, of the system before that of the user. They may not exist.
fn uv_files(get: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Vec<PathBuf> {
    if let Some(named) = path_of(get, "UV_CONFIG_FILE") {
        return vec![named];
    }
    let folders = if cfg!(windows) {
        [path_of(get, "ProgramData"), path_of(get, "APPDATA")]
    } else {
        let user = path_of(get, "XDG_CONFIG_HOME").or_else(|| Some(home?.join(".config")));
        [Some(PathBuf::from("/etc")), user]
    };
    folders.into_iter().flatten().map(|folder| folder.join("uv").join("uv.toml")).collect()
}

/// The package indexes in a configuration file of uv.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UvFile {
    index: Vec<UvIndex>,
    index_url: Option<String>,
    extra_index_url: Vec<String>,
    pip: UvPip,
}

#[derive(Deserialize)]
struct UvIndex {
    name: Option<String>,
    url: String,
    #[serde(default)]
    default: bool,
    /// Set for an index that has only the packages for which a project names it.
    #[serde(default)]
    explicit: bool,
}

/// Settings that apply only to uv's interface for users of pip.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UvPip {
    index_url: Option<String>,
    extra_index_url: Vec<String>,
}

impl UvFile {
    /// Returns these settings with those of a file of lower precedence, as uv combines them: lists are joined.
    fn over(self, lower: Self) -> Self {
        Self {
            index: [self.index, lower.index].into_iter().flatten().collect(),
            index_url: self.index_url.or(lower.index_url),
            extra_index_url: [self.extra_index_url, lower.extra_index_url].concat(),
            pip: UvPip {
                index_url: self.pip.index_url.or(lower.pip.index_url),
                extra_index_url: [self.pip.extra_index_url, lower.pip.extra_index_url].concat(),
            },
        }
    }

    /// Returns the default index, and the addresses of more.
    fn indexes(self) -> (Option<String>, Vec<String>) {
        let mut names = BTreeSet::new();
        let index = self.index.into_iter();
        // The first index with a name replaces the others.
        let index = index.filter(|index| index.name.clone().is_none_or(|name| names.insert(name)));
        let (defaults, others): (Vec<UvIndex>, Vec<UvIndex>) =
            index.filter(|index| !index.explicit).partition(|index| index.default);
        let default = defaults.into_iter().next().map(|index| index.url);
        let more = others.into_iter().map(|index| index.url);
        let more = more.chain(self.extra_index_url).chain(self.pip.extra_index_url);
        // Only addresses are of use here; a path is a folder of wheels.
        let more = more.filter(|url| url.contains("://")).collect();
        (default.or(self.index_url).or(self.pip.index_url), more)
    }
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
        let pip = files.iter().map(|text| (*text).to_owned()).collect();
        IndexSettings::new(&get, &ConfigurationTexts { pip, uv: Vec::new() }, build)
    }

    #[test]
    fn the_settings_of_uv_follow_those_of_pip() {
        let indexes = |variables: &[(&str, &str)], pip: &[&str], uv: &[&str]| {
            let get = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            let [pip, uv] = [pip, uv].map(|texts| texts.iter().map(|text| (*text).to_owned()).collect());
            IndexSettings::new(&get, &ConfigurationTexts { pip, uv }, Some("https://build")).indexes
        };
        let system = "index-url = \"https://system/simple\"\n";
        let user = "[[index]]\nname = \"more\"\nurl = \"https://more/simple\"\n\
                    [[index]]\nurl = \"https://user/simple\"\ndefault = true\n\
                    [[index]]\nurl = \"wheels\"\nformat = \"flat\"\n";
        assert_eq!(indexes(&[], &[], &[system]), ["https://system/simple"]);
        assert_eq!(indexes(&[], &[], &[system, user]), ["https://user/simple", "https://more/simple"]);
        assert_eq!(indexes(&[], &[], &[system, "index-url = 5"]), ["https://system/simple"]);
        assert_eq!(indexes(&[], &[], &["native-tls = true"]), ["https://build"]);
        // The files of uv are combined, and the first index with a name is used.
        let corp = "[[index]]\nname = \"more\"\nurl = \"https://corp/simple\"\n\
                    [[index]]\nurl = \"https://corp/more\"\n";
        assert_eq!(
            indexes(&[], &[], &[corp, system, user]),
            ["https://user/simple", "https://more/simple", "https://corp/more"]
        );
        assert_eq!(
            indexes(&[], &[], &[corp, system]),
            ["https://system/simple", "https://corp/simple", "https://corp/more"]
        );
        let explicit = "[[index]]\nname = \"gpu\"\nurl = \"https://gpu/simple\"\nexplicit = true\n";
        assert_eq!(indexes(&[], &[], &[system, explicit]), ["https://system/simple"]);
        let of_pip = "[pip]\nindex-url = \"https://pip/simple\"\nextra-index-url = [\"https://b\"]";
        assert_eq!(indexes(&[], &[], &[of_pip]), ["https://pip/simple", "https://b"]);
        let configured = "[global]\nindex-url = https://conf/simple\n";
        assert_eq!(indexes(&[], &[configured], &[system]), ["https://conf/simple"]);
        let named = [("UV_DEFAULT_INDEX", "https://a"), ("UV_INDEX", "corp=https://c https://d?x=1")];
        assert_eq!(indexes(&named, &[], &[user]), ["https://a", "https://c", "https://d?x=1"]);
    }

    #[test]
    fn a_named_file_of_uv_replaces_the_others() {
        let named = |name: &str| (name == "UV_CONFIG_FILE").then(|| "/tmp/uv.toml".to_owned());
        assert_eq!(uv_files(&named, Some(Path::new("/home/a"))), [PathBuf::from("/tmp/uv.toml")]);
        if cfg!(unix) {
            let files = uv_files(&|_| None, Some(Path::new("/home/a")));
            assert_eq!(files, ["/etc/uv/uv.toml", "/home/a/.config/uv/uv.toml"].map(PathBuf::from));
        }
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
