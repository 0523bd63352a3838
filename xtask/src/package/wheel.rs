//! The wheel, built by maturin and installed from an index in a folder by pip and by uv. Its dependency `onnxruntime` comes
//! from the index that pip is configured for.

use std::{
    env,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use zip::ZipArchive;

use super::{Attempt, Installation, packages::Packages};
use xtask_tools::{process, python::VirtualEnvironment};

/// The builder of wheels, with its pinned version.
const MATURIN: &str = "maturin==1.16.0";

/// uv, with its pinned version.
const UV: &str = "uv==0.13.8";

/// The package with its version.
const REQUIREMENT: &str = concat!("narthex==", env!("CARGO_PKG_VERSION"));

/// A wheel in an index of its own.
struct IndexedWheel {
    /// The wheel.
    wheel: PathBuf,
    /// Address of the index.
    index: String,
    /// The environment with maturin.
    tools: VirtualEnvironment,
}

/// Installs the wheel with pip into a virtual environment in the folder.
pub(super) fn install_with_pip(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let indexed = IndexedWheel::make(packages)?;
    let start = Instant::now();
    let python = VirtualEnvironment::prepare(&packages.session, folder)?.python;
    let mut pip = packages.command(&python, folder);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    process::run(pip.args(["--extra-index-url", &indexed.index, REQUIREMENT]))?;
    let took = start.elapsed();
    indexed.installation(took, python.with_file_name("narthex"), folder)
}

/// Installs the wheel into the folder with `uv tool install`.
pub(super) fn install_with_uv(packages: &Packages<'_>, folder: &Path) -> anyhow::Result<Attempt> {
    let indexed = IndexedWheel::make(packages)?;
    if let Err(error) = indexed.tools.install(&packages.session, "uv", &[UV]) {
        return Ok(Attempt::Skipped(format!("pip cannot install uv: {error:#}")));
    }
    let programs = folder.join("bin");
    let mut uv = packages.command(indexed.tools.python.with_file_name("uv"), folder);
    uv.args(["tool", "install", "--quiet", "--index", &indexed.index, REQUIREMENT]);
    uv.env("UV_TOOL_DIR", folder.join("tools")).env("UV_TOOL_BIN_DIR", &programs);
    uv.env("UV_CACHE_DIR", folder.join("cache")).env("UV_PYTHON_DOWNLOADS", "never");
    // uv does not read the settings of pip.
    if let Some(index) = env::var_os("PIP_INDEX_URL") {
        uv.env("UV_DEFAULT_INDEX", index);
    }
    let start = Instant::now();
    process::run(&mut uv)?;
    indexed.installation(start.elapsed(), programs.join("narthex"), folder)
}

impl IndexedWheel {
    /// Builds the wheel and the index, unless this run has built them.
    fn make(packages: &Packages<'_>) -> anyhow::Result<Self> {
        let (session, folder) = (&packages.session, &packages.folder);
        let tools = VirtualEnvironment::prepare(session, &session.workspace.target.join("package-tools"))?;
        tools.install(session, "maturin", &[MATURIN])?;
        if packages.file(".whl")?.is_none() {
            let mut maturin = session.command(&tools.python);
            // maturin starts Cargo, which must not see the variables of this run.
            for (name, value) in session.cargo(&[]).get_envs() {
                if value.is_none() {
                    maturin.env_remove(name);
                }
            }
            maturin.current_dir(session.workspace.root.join("packaging/python"));
            maturin.args(["-m", "maturin", "build", "--release", "--locked", "--out"]).arg(folder);
            process::run(&mut maturin)?;
        }
        let wheel = packages.file(".whl")?.context("maturin made no wheel")?;
        let name = wheel.file_name().context("the wheel has no name")?;
        let page = folder.join("index/narthex");
        fs::create_dir_all(&page)?;
        fs::copy(&wheel, page.join(name))?;
        let link = format!("<!DOCTYPE html>\n<a href=\"{0}\">{0}</a>\n", name.display());
        fs::write(page.join("index.html"), link)?;
        let index = format!("file://{}", folder.join("index").display());
        Ok(Self { wheel, index, tools })
    }

    /// Returns the installation of this wheel, whose program must be the one in the wheel.
    fn installation(&self, took: Duration, program: PathBuf, folder: &Path) -> anyhow::Result<Attempt> {
        let installed = fs::read(&program).with_context(|| program.display().to_string())?;
        ensure!(installed == self.program()?, "another package called narthex was installed");
        Ok(Attempt::Installed(Installation {
            took,
            program: vec![program.into()],
            store: folder.join("store"),
            model: None,
        }))
    }

    /// Reads the program in the wheel.
    fn program(&self) -> anyhow::Result<Vec<u8>> {
        let mut wheel = ZipArchive::new(File::open(&self.wheel)?)?;
        let name = concat!("narthex-", env!("CARGO_PKG_VERSION"), ".data/scripts/narthex");
        let mut program = Vec::new();
        wheel.by_name(name).context("the wheel has no program")?.read_to_end(&mut program)?;
        Ok(program)
    }
}
