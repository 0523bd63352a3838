//! The proxy in the Internet options of Windows, which browsers and pip use. Other systems have none.

use ureq::{Proxy, ProxyProtocol};

/// Name of the setting in errors.
pub(super) const SETTING: &str = "the Internet options of Windows";

/// Returns the proxy of this user's Internet options. A script that chooses proxies is not run.
pub(super) fn read() -> Option<Proxy> {
    let InternetOptions { is_enabled, servers, bypass } = InternetOptions::read()?;
    proxy(&servers, &bypass).filter(|_| is_enabled)
}

/// Values of the Internet options.
struct InternetOptions {
    is_enabled: bool,
    /// `proxy:8080`, or one server for each protocol: `http=proxy:80;https=proxy:8080`.
    servers: String,
    /// Hosts that are reached without the proxy: `localhost;*.example;<local>`.
    bypass: String,
}

impl InternetOptions {
    /// Reads the options from the registry.
    #[cfg(windows)]
    fn read() -> Option<Self> {
        const KEY: &str = r"Software\Microsoft\Windows\CurrentVersion\Internet Settings";
        Some(Self {
            is_enabled: registry::number(KEY, "ProxyEnable")? != 0,
            servers: registry::text(KEY, "ProxyServer")?,
            bypass: registry::text(KEY, "ProxyOverride").unwrap_or_default(),
        })
    }

    #[cfg(not(windows))]
    fn read() -> Option<Self> {
        None
    }
}

/// Returns the proxy for HTTPS, or else that for HTTP. `None` without either.
fn proxy(servers: &str, bypass: &str) -> Option<Proxy> {
    let entries = servers.split(';').map(str::trim).filter(|entry| !entry.is_empty());
    let of = |wanted: &str| {
        let mut servers = entries.clone().filter_map(|entry| match entry.split_once('=') {
            Some((protocol, server)) => protocol.trim().eq_ignore_ascii_case(wanted).then_some(server.trim()),
            None => Some(entry),
        });
        servers.next()
    };
    let server = of("https").or_else(|| of("http"))?;
    let server = server.split_once("://").map_or(server, |(_, server)| server).trim_end_matches('/');
    let (host, port) = server.rsplit_once(':').unwrap_or((server, "80"));
    let builder = Proxy::builder(ProxyProtocol::Http).host(host).port(port.parse().ok()?);
    // Hosts without a dot would be `<local>`. No server of models or packages has such a name but this machine.
    let hosts = bypass.split(';').map(str::trim).filter(|host| !host.is_empty());
    let hosts = hosts.map(|host| if host == "<local>" { "localhost" } else { host });
    hosts.fold(builder, |builder, host| builder.no_proxy(host)).build().ok()
}

#[cfg(windows)]
#[allow(unsafe_code, reason = "only the system's functions read its registry")]
mod registry {
    use std::ffi::c_void;

    use windows_sys::Win32::{
        Foundation::ERROR_SUCCESS,
        System::Registry::{
            HKEY_CURRENT_USER, REG_ROUTINE_FLAGS, RRF_RT_REG_DWORD, RRF_RT_REG_SZ, RegGetValueW,
        },
    };

    /// Maximum length of a text in UTF-16 code units.
    const MAX_UNITS: usize = 4096;

    /// Returns a text of this user.
    pub(super) fn text(key: &str, name: &str) -> Option<String> {
        let mut value = [0u16; MAX_UNITS];
        let size = size_of_val(&value);
        let bytes = read(key, name, RRF_RT_REG_SZ, value.as_mut_ptr().cast(), size)?;
        let text = String::from_utf16_lossy(value.get(..bytes / 2)?);
        Some(text.trim_matches(['\0', ' ']).to_owned()).filter(|text| !text.is_empty())
    }

    /// Returns a number of this user.
    pub(super) fn number(key: &str, name: &str) -> Option<u32> {
        let mut value = 0u32;
        let size = size_of_val(&value);
        read(key, name, RRF_RT_REG_DWORD, (&raw mut value).cast(), size)?;
        Some(value)
    }

    /// Reads a value into a buffer of `size` bytes, and returns the number of bytes that it has.
    fn read(
        key: &str,
        name: &str,
        kind: REG_ROUTINE_FLAGS,
        buffer: *mut c_void,
        size: usize,
    ) -> Option<usize> {
        let [key, name] = [key, name].map(|text| text.encode_utf16().chain([0]).collect::<Vec<u16>>());
        let mut bytes = u32::try_from(size).ok()?;
        // SAFETY: both names end with a zero, the callers' buffers have `bytes` bytes, and all of them outlive the call.
        let status = unsafe {
            RegGetValueW(
                HKEY_CURRENT_USER,
                key.as_ptr(),
                name.as_ptr(),
                kind,
                std::ptr::null_mut(),
                buffer,
                &raw mut bytes,
            )
        };
        (status == ERROR_SUCCESS).then_some(bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use ureq::http::Uri;

    use super::*;

    #[test]
    fn the_proxy_of_the_protocol_is_chosen() {
        let check = |servers: &str, expected: Option<(&str, u16)>| {
            let found = proxy(servers, "");
            let found = found.as_ref().map(|proxy| (proxy.host(), proxy.port()));
            assert_eq!(found, expected, "{servers}");
        };
        check("proxy.corp:8080", Some(("proxy.corp", 8080)));
        check("http://proxy.corp:8080/", Some(("proxy.corp", 8080)));
        check("proxy.corp", Some(("proxy.corp", 80)));
        check("http=a:1;https=b:2;ftp=c:3", Some(("b", 2)));
        check("ftp=c:3; http=a:1", Some(("a", 1)));
        check("socks=s:1080", None);
        check("proxy.corp:port", None);
        check("", None);
    }

    #[test]
    fn hosts_of_the_bypass_list_are_reached_directly() {
        let proxy = proxy("proxy.corp:8080", "*.corp.example; 10.*;<local>;").unwrap();
        let is_direct = |address: &str| proxy.is_no_proxy(&address.parse::<Uri>().unwrap());
        for address in ["https://hub.corp.example/x", "http://10.1.2.3:80", "http://localhost:9"] {
            assert!(is_direct(address), "{address}");
        }
        assert!(!is_direct("https://models.example/x"));
    }
}
