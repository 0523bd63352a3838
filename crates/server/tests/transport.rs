//! Transports other than plain TCP: TLS and Unix sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
};

use narthex_gateway::Gateway;
use narthex_server::{ServeError, ServeOptions, TlsFiles, run_until};
use support::{Live, PATIENCE, Tiny, local};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, Stream,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

const CERTIFICATE: &[u8] = include_bytes!("tls/certificate.pem");
const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn tls(key: &[u8]) -> ServeOptions {
    let files = TlsFiles { certificate: CERTIFICATE.to_vec(), key: key.to_vec() };
    ServeOptions { tls: Some(files), ..local() }
}

/// Reads until the connection ends.
fn all(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    // A server may close the connection without a TLS close_notify.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn tls_is_served_with_the_certificate() {
    let live = Live::with_options(Tiny::new().config(), tls(include_bytes!("tls/key.pem")));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let connect = || {
        let stream = TcpStream::connect(live.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    // A client without a handshake and a client with plain HTTP do not block others.
    let _silent = connect();
    let mut plain = connect();
    plain.write_all(REQUEST).unwrap();
    assert!(!all(&plain).contains("HTTP/1.1 200"));
    let mut stream = connect();
    let mut encrypted = Stream::new(&mut client, &mut stream);
    encrypted.write_all(REQUEST).unwrap();
    let answer = all(encrypted);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"status\":\"ok\""), "{answer}");
}

#[test]
fn a_key_of_another_certificate_is_refused_at_the_start() {
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let options = tls(include_bytes!("tls/other-key.pem"));
    let error = run_until(gateway, options, |_| panic!("it serves"), async || ()).unwrap_err();
    assert!(
        matches!(error, ServeError::Tls { .. }) && error.hint().unwrap().contains("--tls-key"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_unix_socket_is_served_to_its_user() {
    use std::os::unix::{fs::PermissionsExt, net::UnixStream};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("narthex.sock");
    let options = || ServeOptions { unix_socket: Some(path.clone()), ..local() };
    let live = Live::with_options(Tiny::new().config(), options());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        all(stream)
    };
    assert!(ask(REQUEST).starts_with("HTTP/1.1 200"));
    assert!(
        ask(&String::from_utf8_lossy(REQUEST).replace("localhost", "evil.example").into_bytes())
            .contains(" 403 ")
    );
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let taken = run_until(gateway, options(), |_| panic!("it serves"), async || ()).unwrap_err();
    assert!(taken.hint().unwrap().contains("another program"), "{taken}");
    live.signal();
    live.join();
    assert!(!path.exists());
}
