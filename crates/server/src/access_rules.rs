//! The access rules of a server in words, for its start: who can connect, which web pages, and what requests may
//! download. Nothing here decides; [`crate::access`] does.

use std::fmt;

use narthex_gateway::{AutoPull, Gateway};

use crate::{
    access::{AccessOptions, AllowedHost, AllowedOrigin, Authentication},
    serve::{ServeError, ServeOptions},
};

/// The access rules of a server. Its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRules {
    clients: Clients,
    needs_key: bool,
    auto_pull: AutoPull,
    /// Maximum bytes of a model that requests may download from the catalogue.
    pull_limit: u64,
    hosts: Vec<AllowedHost>,
    origins: Vec<AllowedOrigin>,
    is_encrypted: bool,
}

/// Programs that can connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// Programs of the user, through a Unix socket.
    User,
    /// Programs of this machine.
    Machine,
    /// Programs of every machine that reaches the address.
    Network,
}

impl ServeOptions {
    /// Returns the access rules of a server with these options.
    ///
    /// # Errors
    /// [`ServeError::Keys`] for a malformed key file.
    pub fn access_rules(&self, gateway: &Gateway) -> Result<AccessRules, ServeError> {
        Ok(AccessRules::new(self, self.has_key(gateway)?, gateway.config().auto_pull_limit))
    }
}

impl AccessRules {
    /// Returns the rules of these options; `has_key` is true if the store or the options have a key.
    fn new(options: &ServeOptions, has_key: bool, pull_limit: u64) -> Self {
        let clients = match (&options.unix_socket, options.is_local()) {
            (Some(_), _) => Clients::User,
            (None, true) => Clients::Machine,
            (None, false) => Clients::Network,
        };
        let AccessOptions { allowed_hosts, cors_origins, authentication, auto_pull, .. } = &options.access;
        Self {
            clients,
            needs_key: has_key && *authentication == Authentication::Standard,
            auto_pull: auto_pull.unwrap_or_else(|| AccessOptions::default_auto_pull(options.is_local())),
            pull_limit,
            hosts: allowed_hosts.clone(),
            origins: cors_origins.clone(),
            is_encrypted: options.tls.is_some(),
        }
    }

    /// Returns the dangers of the rules, each with its option.
    pub fn warnings(&self) -> Vec<String> {
        if self.needs_key {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        let is_open = self.clients == Clients::Network;
        if is_open {
            warnings.push(
                "every machine that reaches this address may use the models without a key (--insecure-no-auth)"
                    .to_owned(),
            );
        }

        if self.origins.contains(&AllowedOrigin::Any) {
            warnings.push(
                "every web page that a user of this machine opens may use the models (--cors-origin *); name the \
                 pages' origins, or create a key with `narthex key add NAME`"
                    .to_owned(),
            );
        }

        if self.origins.contains(&AllowedOrigin::Exactly("null".to_owned())) {
            warnings.push(
                "every web page that a user of this machine opens may use the models, because any page can send \
                 requests from a sandboxed frame (--cors-origin null); name the pages' origins, or create a key with \
                 `narthex key add NAME`"
                    .to_owned(),
            );
        }

        if !is_open && self.hosts.contains(&AllowedHost::Any) {
            warnings.push(
                "a web page can reach the server under a name of its own (--allowed-host *, DNS rebinding); name the \
                 hosts, or create a key with `narthex key add NAME`"
                    .to_owned(),
            );
        }

        if is_open && self.auto_pull != AutoPull::Never {
            warnings.push("requests without a key may download models (--auto-pull)".to_owned());
        }
        warnings
    }
}

impl fmt::Display for AccessRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.clients {
            Clients::User => "programs of this user",
            Clients::Machine => "programs of this machine",
            Clients::Network if self.is_encrypted => "every machine that can connect, over TLS",
            Clients::Network => "every machine that can connect, without TLS",
        })?;

        f.write_str(if self.needs_key { ", with a key; " } else { ", without a key; " })?;
        let mut origins: Vec<&str> = self
            .origins
            .iter()
            .map(|origin| match origin {
                AllowedOrigin::Any => "all sites",
                AllowedOrigin::Exactly(origin) if origin == "null" => "all sites, in sandboxed frames",
                AllowedOrigin::Exactly(origin) | AllowedOrigin::Scheme(origin) => origin,
            })
            .collect();
        if self.clients != Clients::Network {
            origins.insert(0, "this machine");
        }

        match origins.as_slice() {
            [] => f.write_str("no web pages but its own; ")?,
            origins => write!(f, "web pages of {}; ", origins.join(", "))?,
        }
        match self.auto_pull {
            AutoPull::Never => f.write_str("requests cannot download models"),
            AutoPull::Catalogue => {
                let gibibytes = self.pull_limit as f64 / (1u64 << 30) as f64;
                write!(f, "requests may download catalogue models from pip, up to {gibibytes} GiB")
            }
            AutoPull::Always => f.write_str("requests may download any model"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(has_key: bool, change: impl FnOnce(&mut ServeOptions)) -> AccessRules {
        let mut options = ServeOptions::local(0);
        change(&mut options);
        AccessRules::new(&options, has_key, 1 << 30)
    }

    #[test]
    fn rules_are_a_line_of_words() {
        let check = |rules: AccessRules, expect: &str| assert_eq!(rules.to_string(), expect);
        let downloads = "requests may download catalogue models from pip, up to 1 GiB";
        check(
            rules(false, |_| {}),
            &format!("programs of this machine, without a key; web pages of this machine; {downloads}"),
        );
        check(
            rules(true, |options| {
                options.host = "0.0.0.0".to_owned();
                options.access.auto_pull = Some(AutoPull::Always);
            }),
            "every machine that can connect, without TLS, with a key; no web pages but its own; requests may download any model",
        );
        check(
            rules(true, |options| {
                options.unix_socket = Some("/run/narthex.sock".into());
                options.access.authentication = Authentication::Off;
                options.access.cors_origins = vec!["https://app.example".parse().unwrap()];
                options.access.auto_pull = Some(AutoPull::Never);
            }),
            "programs of this user, without a key; web pages of this machine, https://app.example; requests cannot \
             download models",
        );
    }

    #[test]
    fn dangerous_rules_have_warnings() {
        type Change = fn(&mut ServeOptions);
        let any_page: Change = |options| options.access.cors_origins = vec![AllowedOrigin::Any];
        let null: Change = |options| options.access.cors_origins = vec!["null".parse().unwrap()];
        let any_host: Change = |options| options.access.allowed_hosts = vec![AllowedHost::Any];
        let open: Change = |options| options.host = "0.0.0.0".to_owned();
        let open_pull: Change = |options| {
            options.host = "::".to_owned();
            options.access.auto_pull = Some(AutoPull::Catalogue);
        };
        let check = |change: Change, expect: &[&str]| {
            let found = rules(false, change).warnings();
            assert_eq!(found.len(), expect.len(), "{found:?}");
            assert!(found.iter().zip(expect).all(|(found, expect)| found.contains(expect)), "{found:?}");
            assert!(rules(true, change).warnings().is_empty(), "a key protects the server");
        };
        check(|_| {}, &[]);
        check(any_page, &["--cors-origin *"]);
        check(null, &["--cors-origin null"]);
        check(any_host, &["--allowed-host *"]);
        check(open, &["--insecure-no-auth"]);
        check(open_pull, &["--insecure-no-auth", "--auto-pull"]);
    }
}
