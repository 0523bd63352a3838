//! Connections to an upstream: TCP, through the proxy of the environment, and TLS.

use std::{fmt, io, sync::Arc};

use narthex_gateway::{
    UpstreamUrl,
    outbound::{self, ProxyAddress},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::OnceCell,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName},
    },
};

/// Maximum bytes of a proxy's answer.
const MAX_PROXY_ANSWER: usize = 8 << 10;

/// Bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens connections to one upstream.
pub(crate) struct UpstreamConnector {
    url: UpstreamUrl,
    tls: OnceCell<TlsConnector>,
}

impl UpstreamConnector {
    pub(crate) fn new(url: UpstreamUrl) -> Self {
        Self { url, tls: OnceCell::new() }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The reason, without an address.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, String> {
        let url = self.url.to_string();
        // A proxy is of no use for this machine itself.
        let proxy = if self.url.is_loopback() { None } else { outbound::proxy_for(&url) };
        let stream = match proxy {
            Some(proxy) => self.tunnel(&proxy).await.map_err(|error| format!("the proxy failed: {error}"))?,
            None => TcpStream::connect((self.url.host(), self.url.port())).await.map_err(text)?,
        };
        // Without this, small requests may wait for an acknowledgement.
        stream.set_nodelay(true).map_err(text)?;
        if !self.url.is_secure() {
            return Ok(Box::new(stream));
        }
        let tls = self.tls.get_or_try_init(connector).await?;
        let name = ServerName::try_from(self.url.host().to_owned());
        let name = name.map_err(|_| "its host is no name for TLS".to_owned())?;
        Ok(Box::new(tls.connect(name, stream).await.map_err(|error| format!("TLS failed: {error}"))?))
    }

    /// Opens a tunnel through a proxy (RFC 9110, section 9.3.6).
    async fn tunnel(&self, proxy: &ProxyAddress) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((proxy.host.as_str(), proxy.port)).await?;
        let (host, port) = (self.url.host(), self.url.port());
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let authorization = proxy.authorization.as_ref();
        let authorization =
            authorization.map_or_else(String::new, |value| format!("Proxy-Authorization: {value}\r\n"));
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await?;

        let mut answer = Vec::new();
        // Byte by byte, because what follows the answer belongs to the tunnel.
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() == MAX_PROXY_ANSWER {
                return Err(io::Error::other("its answer is too long"));
            }
            answer.push(stream.read_u8().await?);
        }
        let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if !answer.starts_with(b"HTTP/1.") || status.first() != Some(&b'2') {
            return Err(io::Error::other(format!(
                "it refused the tunnel with status {}",
                status.escape_ascii()
            )));
        }
        Ok(stream)
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// Returns the connector for TLS with the certificates that downloads trust.
async fn connector() -> Result<TlsConnector, String> {
    // The certificates of a system may be hundreds of files.
    let roots =
        tokio::task::spawn_blocking(outbound::root_certificates).await.map_err(text)?.map_err(text)?;
    let mut store = RootCertStore::empty();
    if roots.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store.add_parsable_certificates(roots.into_iter().map(CertificateDer::from));
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(text)?;
    let config = versions.with_root_certificates(store).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
