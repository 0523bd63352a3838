//! Download of pinned wheels from a package index without pip.
//!
//! The index has the simple repository API: PEP 691 (JSON), or PEP 503 (HTML), which most mirrors have. A wheel is
//! selected by its pinned digest, so neither the index nor the connection needs to be trusted. Reading order: this file
//! (one wheel), `settings` (those of pip and uv), `page` (the files of a package).

mod page;
mod settings;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use narthex_spec::progress::Stage;

use self::page::{IndexFile, parse};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::settings::ConfigurationTexts;
pub(crate) use self::settings::IndexSettings;
use super::{
    http::{Answer, CertificateFile, HttpClient, Method, NamedProxy, Origin, broken, join},
    partial_file::{PartialFile, Retries, TransferEnd, continues},
    pinned::PinnedWheel,
};
use crate::{
    CancelFlag, check_cancel,
    error::{Error, PackageIndexError},
};

/// Formats of a page, from the preferred one.
const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// Maximum size in bytes of the page of a package. The largest known ones have some megabytes.
const PAGE_LIMIT: u64 = 64 << 20;

/// The package indexes of a user.
#[derive(Debug, Clone)]
pub(crate) struct PackageIndex {
    settings: IndexSettings,
    backoff: Duration,
}

/// Displays the hosts.
impl fmt::Display for PackageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.settings.indexes.iter().filter_map(|url| host_of(url)).collect();
        f.write_str(&hosts.join(", "))
    }
}

/// One index, with the client for its server.
struct IndexServer {
    http: HttpClient,
    host: String,
    /// Address without credentials and without a slash at its end.
    url: String,
}

impl PackageIndex {
    /// Creates a client for the indexes of some settings; `None` without an index.
    pub(crate) fn new(settings: IndexSettings, backoff: Duration) -> Option<Self> {
        (!settings.indexes.is_empty()).then_some(Self { settings, backoff })
    }

    /// Returns the indexes in the settings of pip and uv, or else that of this build; `None` without both.
    pub(crate) fn from_environment() -> Option<Self> {
        Self::new(IndexSettings::from_environment(), Duration::from_millis(500))
    }

    /// Downloads a pinned wheel into a folder, and returns its path. Reports bytes to `stage`. The first index that lists
    /// the wheel is used. The digest is not checked here.
    pub(crate) fn download(
        &self,
        pinned: &PinnedWheel<'_>,
        folder: &Path,
        stage: &Stage<'_>,
        cancel: &CancelFlag,
    ) -> Result<PathBuf, Error> {
        let mut hosts = Vec::new();
        let mut first_error = None;

        for url in &self.settings.indexes {
            let server = self.server(url)?;
            match self.find(&server, pinned, cancel) {
                Ok(Some(file)) => {
                    let path = folder.join(&file.name);
                    let download = WheelDownload { server, file, bytes: pinned.bytes, path };
                    download.run(self.backoff, stage, cancel)?;
                    return Ok(download.path);
                }
                Ok(None) => hosts.push(server.host),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => {
                    tracing::debug!(host = server.host, %error, "the index is not used");
                    first_error.get_or_insert(error);
                }
            }
        }

        Err(first_error.unwrap_or_else(|| {
            PackageIndexError::NotListed {
                package: pinned.wanted.package.to_owned(),
                version: pinned.wanted.version.to_owned(),
                platform: pinned.wanted.platform.to_owned(),
                hosts,
            }
            .into()
        }))
    }

    fn server(&self, address: &str) -> Result<IndexServer, Error> {
        let (url, authorization) = divide(address).ok_or(PackageIndexError::BadAddress)?;
        let origin = Origin::of(&url).ok_or(PackageIndexError::BadAddress)?;
        let host = origin.host().to_owned();
        let proxy =
            self.settings.proxy.as_ref().map(|(address, setting)| {
                NamedProxy::new(address, setting).ok_or(PackageIndexError::BadProxy)
            });
        let certificates = self.settings.certificates.clone();
        let certificates = certificates.map(|(path, setting)| CertificateFile { path, setting });
        let http = HttpClient::new(origin, authorization, proxy.transpose()?, certificates)
            .map_err(PackageIndexError::from)?;
        Ok(IndexServer { http, host, url })
    }

    /// Returns the file of a pinned wheel on an index; `None` if the index does not list it.
    fn find(
        &self,
        server: &IndexServer,
        pinned: &PinnedWheel<'_>,
        cancel: &CancelFlag,
    ) -> Result<Option<IndexFile>, Error> {
        let package = page::normalized(pinned.wanted.package);
        let url = format!("{}/{package}/", server.url);
        let mut retries = Retries::new(self.backoff);
        loop {
            check_cancel(cancel)?;
            match server.files(&url, &package) {
                Ok(files) => return Ok(page::select(files, pinned)),
                Err(error) => retries.wait_after(error.into(), 0, cancel)?,
            }
        }
    }
}

impl IndexServer {
    /// Requests the page of a package, and returns its files; none if the index does not have the package.
    fn files(&self, url: &str, package: &str) -> Result<Vec<IndexFile>, PackageIndexError> {
        let mut answer = self.http.send(Method::Get { from: 0 }, url, Some(ACCEPT), package)?;
        if answer.status() == 404 {
            return Ok(Vec::new());
        }
        self.expect_success(&answer, package)?;
        let bad = |reason: String| PackageIndexError::BadPage {
            host: self.host.clone(),
            package: package.to_owned(),
            reason,
        };
        let bytes = answer.read(package, PAGE_LIMIT)?;
        let bytes = bytes.ok_or_else(|| bad(format!("it is longer than {PAGE_LIMIT} bytes")))?;
        let mut files = parse(&bytes).map_err(bad)?;
        for file in &mut files {
            file.url = join(&answer.url, &file.url);
        }
        Ok(files)
    }

    fn expect_success(&self, answer: &Answer, what: &str) -> Result<(), PackageIndexError> {
        let host =
            Origin::of(&answer.url).map_or_else(|| self.host.clone(), |origin| origin.host().to_owned());
        let what = what.to_owned();
        match answer.status() {
            200..300 => Ok(()),
            status @ (401 | 403) => Err(PackageIndexError::Refused { host, what, status }),
            status => Err(PackageIndexError::Status { host, what, status }),
        }
    }
}

/// The download of one file of an index.
struct WheelDownload {
    server: IndexServer,
    file: IndexFile,
    /// Size of the pinned file.
    bytes: u64,
    path: PathBuf,
}

impl WheelDownload {
    /// Downloads the file. Continues after the bytes of earlier attempts.
    fn run(&self, backoff: Duration, stage: &Stage<'_>, cancel: &CancelFlag) -> Result<(), Error> {
        let mut retries = Retries::new(backoff);
        loop {
            check_cancel(cancel)?;
            let error = match self.attempt(&|done| stage.advance(done), cancel) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            tracing::debug!(file = self.file.name, %error, "attempt failed");
            let length = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
            retries.wait_after(error, length, cancel)?;
        }
    }

    fn attempt(&self, seen: &dyn Fn(u64), cancel: &CancelFlag) -> Result<(), Error> {
        let Self { server, file, bytes, path } = self;
        let mut partial = PartialFile::open(path, *bytes, cancel)?;
        let from = partial.bytes;
        if from == *bytes {
            return partial.finish().map(drop);
        }

        let method = Method::Get { from };
        let answer =
            server.http.send(method, &file.url, None, &file.name).map_err(PackageIndexError::from)?;
        if answer.status() != 416 {
            server.expect_success(&answer, &file.name)?;
        }
        if from > 0 && !continues(&answer.response, from) {
            partial.restart()?;
        }

        match partial.receive(answer.response, *bytes, seen, cancel)? {
            TransferEnd::Broken(error) => {
                Err(PackageIndexError::from(broken(&file.name, error.into())).into())
            }
            TransferEnd::Whole if partial.bytes == *bytes => partial.finish().map(drop),
            TransferEnd::Whole | TransferEnd::TooLong => {
                let name = file.name.clone();
                let host =
                    Origin::of(&answer.url).map_or_else(String::new, |origin| origin.host().to_owned());
                let found = partial.bytes;
                Err(PackageIndexError::WrongLength { name, host, expected: *bytes, found }.into())
            }
        }
    }
}

/// Divides the address of an index into the address without credentials, and the value of `Authorization` for them.
fn divide(address: &str) -> Option<(String, Option<String>)> {
    let (scheme, rest) = address.trim().trim_end_matches('/').split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let authorization = user.map(|user| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let credential = [percent_decoded(name), vec![b':'], percent_decoded(password)].concat();
        format!("Basic {}", BASE64_STANDARD.encode(credential))
    });
    Some((format!("{scheme}://{host}{path}"), authorization))
}

/// Reads the page of a package. Returns the number of files.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_page(bytes: &[u8]) -> Result<usize, String> {
    parse(bytes).map(|files| files.len())
}

fn host_of(address: &str) -> Option<String> {
    Some(Origin::of(&divide(address)?.0)?.host().to_owned())
}

/// Decodes `%` with two hexadecimal digits; other bytes stay.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
