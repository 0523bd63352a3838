//! Use of the network.

use std::{env, ffi::OsString};

use crate::error::Error;

/// Variables that forbid use of the network: Narthex's own, and that of the hub's tools.
const VARIABLES: [&str; 2] = ["NARTHEX_OFFLINE", "HF_HUB_OFFLINE"];

/// Use of the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Downloads are allowed.
    #[default]
    Allowed,
    /// Only files on this machine are used. Neither a connection nor pip is started.
    CacheOnly,
}

impl Network {
    /// Reads `NARTHEX_OFFLINE` and `HF_HUB_OFFLINE`.
    pub fn from_environment() -> Self {
        Self::from_variables(&|name| env::var_os(name))
    }

    pub(crate) fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Self {
        // An unknown value disables the network, because the variable is set for safety.
        if VARIABLES.into_iter().filter_map(get).any(|value| {
            !matches!(
                value.to_string_lossy().trim().to_ascii_lowercase().as_str(),
                "" | "0" | "false" | "no" | "off"
            )
        }) {
            Self::CacheOnly
        } else {
            Self::Allowed
        }
    }

    /// Refuses a download of `what` through pip if the network must not be used.
    pub(crate) fn check_pip(self, what: &str) -> Result<(), Error> {
        match self {
            Self::Allowed => Ok(()),
            Self::CacheOnly => Err(Error::Offline { what: what.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_variable_forbids_the_network() {
        let check = |name: &str, value: &str, expect: Network| {
            let get = |asked: &str| (asked == name).then(|| value.into());
            assert_eq!(Network::from_variables(&get), expect, "{name}={value}");
        };
        check("NARTHEX_OFFLINE", "1", Network::CacheOnly);
        check("HF_HUB_OFFLINE", "True", Network::CacheOnly);
        check("NARTHEX_OFFLINE", "y", Network::CacheOnly);
        check("HF_HUB_OFFLINE", "0", Network::Allowed);
        check("HF_HUB_OFFLINE", "Off", Network::Allowed);
        check("NARTHEX_OFFLINE", "", Network::Allowed);
        check("OFFLINE", "1", Network::Allowed);
        #[cfg(unix)]
        {
            let value = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(vec![0xFF]);
            let get = |asked: &str| (asked == "HF_HUB_OFFLINE").then(|| value.clone());
            assert_eq!(Network::from_variables(&get), Network::CacheOnly);
        }
    }
}
