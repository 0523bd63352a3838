//! Web application that embeds the library: `cargo run --example axum_app -p narthex-server`, then `curl
//! 'http://127.0.0.1:3000/similar?a=a+cat&b=a+kitten'`.
//!
//! The library is synchronous, so its calls run on threads for blocking work. With the argument `once`, the application
//! sends one request to itself and ends.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use axum::{
    Router,
    extract::{Query, State},
    http::StatusCode,
    routing::get,
};
use narthex_gateway::{Cancel, Config, Gateway, request::EmbedRequest};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MODEL: &str = "all-minilm-l6-v2";

#[derive(Deserialize)]
struct Pair {
    a: String,
    b: String,
}

/// Responds with the cosine of the embeddings of two texts.
async fn similar(
    State(gateway): State<Gateway>,
    Query(pair): Query<Pair>,
) -> Result<String, (StatusCode, String)> {
    let failed = |error: String| (StatusCode::SERVICE_UNAVAILABLE, error);
    let embed = move || gateway.embed(MODEL, &EmbedRequest::new([pair.a, pair.b]), &Cancel::new());
    let embedded = tokio::task::spawn_blocking(embed).await.map_err(|error| failed(error.to_string()))?;
    let vectors = embedded.map_err(|error| failed(error.to_string()))?.vectors;
    match vectors.as_slice() {
        [a, b] => {
            let cosine: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            Ok(format!("{cosine:.3}\n"))
        }
        _ => Err(failed("the model returned no vectors".to_owned())),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    narthex_gateway::disable_telemetry();
    let once = std::env::args().nth(1).is_some_and(|argument| argument == "once");
    let app = Router::new().route("/similar", get(similar)).with_state(Gateway::open(Config::standard())?);
    let port = if once { 0 } else { 3000 };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    let server = axum::serve(listener, app);
    if !once {
        return Ok(server.await?);
    }
    tokio::spawn(server.into_future());
    let mut client = tokio::net::TcpStream::connect(address).await?;
    let request = "GET /similar?a=a+cat&b=a+kitten HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    println!("{answer}");
    Ok(())
}
