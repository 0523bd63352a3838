//! Transports other than plain TCP: TLS and Unix sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use narthex_gateway::{Config, Gateway};
use narthex_server::{ServeError, ServeOptions, TlsFiles, run_until};
use narthex_spec::Speculation;
use serde_json::Value;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, Stream, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::support::{Answer, LONG_CONTEXT, Live, PATIENCE, Tiny, chat, local};

const CERTIFICATE: &[u8] = include_bytes!("../tls/certificate.pem");
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

/// Returns the TLS state of a client that trusts the certificate.
fn tls_client() -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

fn connect(live: &Live) -> TcpStream {
    let stream = TcpStream::connect(live.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a chat request over TLS, and then closes the client's sending direction.
fn send_over_tls(live: &Live, body: &Value) -> StreamOwned<ClientConnection, TcpStream> {
    let mut client = StreamOwned::new(tls_client(), connect(live));
    // With this answer, the client reads the server's session tickets. Unread bytes would reset a dropped connection.
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut begun = Vec::new();
    while !begun.ends_with(b"Narthex is running") {
        let mut next = [0];
        client.read_exact(&mut next).unwrap();
        begun.extend(next);
    }
    client.write_all(&chat_request(body)).unwrap();
    client.conn.send_close_notify();
    client.flush().unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    client
}

/// Returns a chat request in HTTP/1.1.
fn chat_request(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost";
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns the settings of a server with one slot.
fn one_slot(tiny: &Tiny) -> Config {
    Config { slots: 1, speculation: Speculation::Off, ..tiny.config() }
}

#[test]
fn tls_is_served_with_the_certificate() {
    let live = Live::with_options(Tiny::new().config(), tls(include_bytes!("../tls/key.pem")));
    let mut client = tls_client();
    // A client without a handshake and a client with plain HTTP do not block others.
    let _silent = connect(&live);
    let mut plain = connect(&live);
    plain.write_all(REQUEST).unwrap();
    assert!(!all(&plain).contains("HTTP/1.1 200"));
    let mut stream = connect(&live);
    let mut encrypted = Stream::new(&mut client, &mut stream);
    encrypted.write_all(REQUEST).unwrap();
    let answer = all(encrypted);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"status\":\"ok\""), "{answer}");
}

#[test]
fn a_client_of_tls_that_sends_no_more_gets_its_answer() {
    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let live = Live::with_options(one_slot(&tiny), tls(include_bytes!("../tls/key.pem")));
    let answer = all(send_over_tls(&live, &chat(&model, 600)));
    assert_eq!(Answer::parse(answer.as_bytes()).json()["usage"]["completion_tokens"], 600);
    // A client that is gone does not keep its slot.
    drop(send_over_tls(&live, &chat(&model, LONG_CONTEXT / 2)));
    let next = all(send_over_tls(&live, &chat(&model, 2)));
    assert_eq!(Answer::parse(next.as_bytes()).status, 200);
    let mut asking = StreamOwned::new(tls_client(), connect(&live));
    asking.write_all(REQUEST).unwrap();
    let health = Answer::parse(all(asking).as_bytes()).json();
    let generated = health["models"][0]["engine"]["generated_tokens"].as_u64().unwrap();
    assert!(generated < (LONG_CONTEXT / 2) as u64, "{generated}");
}

#[test]
fn a_key_of_another_certificate_is_refused_at_the_start() {
    let gateway = Gateway::open(Tiny::new().config()).unwrap();
    let options = tls(include_bytes!("../tls/other-key.pem"));
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

#[cfg(unix)]
#[test]
fn a_client_of_a_unix_socket_that_sends_no_more_gets_its_answer() {
    use std::os::unix::net::UnixStream;

    let tiny = Tiny::new();
    let model = tiny.long_chat();
    let path = tiny.home().join("narthex.sock");
    let live =
        Live::with_options(one_slot(&tiny), ServeOptions { unix_socket: Some(path.clone()), ..local() });
    let send = |body: &Value| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&chat_request(body)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream
    };
    let answer = all(send(&chat(&model, 600)));
    assert_eq!(Answer::parse(answer.as_bytes()).json()["usage"]["completion_tokens"], 600);
    // A client that is gone does not keep its slot.
    drop(send(&chat(&model, LONG_CONTEXT / 2)));
    let next = Answer::parse(all(send(&chat(&model, 2))).as_bytes());
    assert_eq!(next.status, 200);
    drop(live);
}
