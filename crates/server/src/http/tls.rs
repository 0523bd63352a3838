//! TLS for connections, with a certificate and a key from PEM files.
//!
//! The handshake happens at the first read, so that it counts towards the client's time limit for the head of its first
//! request.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    Accept, TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server::TlsStream,
};

/// Protocols that clients may choose, in the order of preference.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate and its key, as the contents of PEM files.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those that sign it.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsFiles(…)")
    }
}

impl TlsFiles {
    /// Reads the certificate and the key.
    ///
    /// # Errors
    /// The reason if one of them is malformed, or if they do not belong together.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, String> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("the certificate is not a PEM file: {error}"))?;
        if chain.is_empty() {
            return Err("the certificate file has no certificate: expected BEGIN CERTIFICATE".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| format!("the key file has no private key in PEM: {error}"))?;
        let versions = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions();
        let mut config = versions
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| format!("the certificate and the key cannot be used: {error}"))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Arc::new(config).into())
    }
}

/// A client's connection under TLS.
pub(crate) enum TlsConnection {
    /// The handshake has not ended.
    Handshake(Box<Accept<TcpStream>>),
    /// The connection is encrypted.
    Open(Box<TlsStream<TcpStream>>),
}

impl TlsConnection {
    pub(crate) fn new(acceptor: &TlsAcceptor, stream: TcpStream) -> Self {
        Self::Handshake(Box::new(acceptor.accept(stream)))
    }

    /// Returns the stream once the handshake has ended.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let Self::Handshake(handshake) = self {
            let stream = ready!(Pin::new(&mut **handshake).poll(context))?;
            *self = Self::Open(Box::new(stream));
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            // The branch above has ended the handshake.
            Self::Handshake(_) => Poll::Pending,
        }
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            // A server writes only after it has read, which completes the handshake.
            Self::Handshake(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            // Writing no bytes checks the connection, which TLS alone does not.
            Self::Open(stream) if bytes.is_empty() => {
                Pin::new(&mut stream.get_mut().0).poll_write(context, bytes)
            }
            Self::Open(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            // Nothing was written yet.
            Self::Handshake(_) => Poll::Ready(Ok(())),
            Self::Open(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            // Dropping the handshake closes the connection.
            Self::Handshake(_) => Poll::Ready(Ok(())),
            Self::Open(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_fit_are_refused_with_a_reason() {
        let certificate = include_bytes!("../../tests/tls/certificate.pem").to_vec();
        let key = include_bytes!("../../tests/tls/key.pem").to_vec();
        let other = include_bytes!("../../tests/tls/other-key.pem").to_vec();
        let check = |certificate: &[u8], key: &[u8], expect: &str| {
            let files = TlsFiles { certificate: certificate.to_vec(), key: key.to_vec() };
            let reason = files.acceptor().err().unwrap();
            assert!(reason.contains(expect), "{reason}");
        };
        TlsFiles { certificate: certificate.clone(), key: key.clone() }.acceptor().unwrap();
        check(b"", &key, "no certificate");
        check(&key, &key, "no certificate");
        check(&certificate, b"", "no private key");
        check(&certificate, &certificate, "no private key");
        check(&certificate, &other, "cannot be used");
        check(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &key, "not a PEM file");
    }
}
