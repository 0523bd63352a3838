//! Malformed requests to every route and method of a live server.
//!
//! The routes are those of the server's own `/openapi.json`, which is generated from the list of its router.

use std::{collections::BTreeMap, io::Write, net::TcpStream, time::Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{
    Outcome, Subject,
    live::{Cases, Live},
    mutation::{Random, mutate},
};
use crate::fuzz::{
    Target,
    seeds::{self, Input},
};

/// Minimum number of malformed requests.
const REQUESTS: usize = 1000;

/// Minimum number of requests to a route with a method that it has.
const OF_ROUTE: usize = 40;

/// Number of requests to a route that the document does not list.
const OF_FURTHER: usize = 10;

/// Requests that the document does not list.
const FURTHER: [(&str, &str); 6] = [
    ("GET", "/"),
    ("GET", "/openapi.json"),
    ("GET", "/../../etc/passwd"),
    ("GET", "/v1/models/d%2F..%2F..%2Fetc%2Fshadow"),
    ("DELETE", "/v1/models/local%2Ftiny"),
    ("POST", "/v1//chat/completions/"),
];

/// Methods that each path receives.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// Values of the parameters of paths.
const PARAMETERS: [&str; 6] =
    ["local%2Ftiny", "resp_1", "..%2F..%2F..%2Fetc%2Fshadow", "%00%ff", "%252e%252e", "a/b/c/d"];

/// Ways to send a request.
const FORMS: usize = 6;

/// A method and a path, and the number of requests to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Route {
    method: String,
    path: String,
    count: usize,
}

impl Route {
    fn new(method: &str, path: &str, count: usize) -> Self {
        Self { method: method.to_owned(), path: path.to_owned(), count }
    }
}

/// Sends malformed requests to every route.
pub(super) fn run(subject: &Subject<'_>) -> anyhow::Result<Vec<Outcome>> {
    let live = Live::start(subject, ":")?;
    let (_, document) = live.get("/openapi.json")?;
    let document = document.split_once("\r\n\r\n").map(|(_, body)| body).context("no document")?;
    let routes = routes(&serde_json::from_str(document).context("/openapi.json")?)?;
    let bodies = seeds::of(Target::Request)?;
    let (mut random, mut cases) = (Random::new(subject.seed), Cases::default());
    let mut statuses = BTreeMap::<String, usize>::new();
    for route in &routes {
        for form in 0..subject.cases(route.count, 5) {
            let request = malformed(&live, route, &bodies, &mut random);
            let start = Instant::now();
            match formed(request, form % FORMS, &mut random) {
                Form::Whole(bytes) => match live.send(&bytes) {
                    Ok(answer) => {
                        let status = answer.get(9..12).unwrap_or("none").to_owned();
                        *statuses.entry(status).or_default() += 1;
                    }
                    Err(error) => {
                        let Route { method, path, .. } = route;
                        cases.findings.push(format!("request {form} of {method} {path}: {error:#}"));
                    }
                },
                // The client disconnects at once.
                Form::Half(bytes) => drop(TcpStream::connect(&live.server.address)?.write_all(&bytes)),
            }
            cases.cases += 1;
            cases.slowest = cases.slowest.max(start.elapsed());
        }
    }
    let counts: Vec<String> = statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
    cases.note = format!("{} routes and methods; {}", routes.len(), counts.join(", "));
    Ok(vec![live.outcome("requests over every route".to_owned(), cases)?])
}

/// Returns the routes of the document, each with its methods and with all others, and those of [`FURTHER`].
fn routes(document: &Value) -> anyhow::Result<Vec<Route>> {
    let paths = document["paths"].as_object().context("expected paths in /openapi.json")?;
    let methods = |methods: &Value| -> Vec<String> {
        methods.as_object().into_iter().flatten().map(|(method, _)| method.to_uppercase()).collect()
    };
    let documented: Vec<(&str, Vec<String>)> =
        paths.iter().map(|(path, found)| (path.as_str(), methods(found))).collect();
    let count = documented.iter().map(|(_, methods)| methods.len()).sum::<usize>();
    ensure!(count > 0, "/openapi.json lists no route");
    let of_route = OF_ROUTE.max(REQUESTS.div_ceil(count));
    let mut routes = Vec::new();
    for (path, methods) in &documented {
        routes.extend(methods.iter().map(|method| Route::new(method, path, of_route)));
        let others = METHODS.iter().filter(|method| !methods.iter().any(|known| known == *method));
        routes.extend(others.map(|method| Route::new(method, path, 1)));
    }
    routes.extend(FURTHER.map(|(method, path)| Route::new(method, path, OF_FURTHER)));
    Ok(routes)
}

/// Returns a request to a route. Half of the bodies are those of the route, and two thirds are mutated.
fn malformed(live: &Live, route: &Route, bodies: &[Input], random: &mut Random) -> Vec<u8> {
    let topic = topic(&route.path);
    let own: Vec<&Input> = bodies.iter().filter(|body| body.name.starts_with(&topic)).collect();
    let body = match random.below(2) {
        0 if !own.is_empty() => own[random.below(own.len())],
        _ => &bodies[random.below(bodies.len())],
    };
    // The model of the later requests must not be removed.
    let model = if route.path == "/api/delete" { "\"m\"" } else { "\"local/tiny\"" };
    let named = String::from_utf8_lossy(&body.bytes).replace("\"m\"", model).into_bytes();
    let body = if random.below(3) == 0 { named } else { mutate(&named, random) };
    let mut path = route.path.clone();
    if let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
        path.replace_range(start..=end, PARAMETERS[random.below(PARAMETERS.len())]);
    }
    live.request(&route.method, &path, &body)
}

/// Returns the start of the names of the bodies of a path: `chat-completions` for `/v1/chat/completions`, and
/// `ollama-chat` for `/api/chat`.
fn topic(path: &str) -> String {
    let words = match path.strip_prefix("/api/") {
        Some(rest) => format!("ollama-{rest}"),
        None => path.strip_prefix("/v1").unwrap_or(path).trim_start_matches('/').to_owned(),
    };
    words.replace(['/', '_'], "-")
}

/// Bytes to send.
enum Form {
    Whole(Vec<u8>),
    Half(Vec<u8>),
}

/// Returns a request in one of its forms: whole, truncated, twice in one piece, or with unusual headers.
fn formed(request: Vec<u8>, form: usize, random: &mut Random) -> Form {
    let replace = |from: &str, to: &str| {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(request.len());
        let head = String::from_utf8_lossy(&request[..end]).replace(from, to);
        [head.as_bytes(), &request[end..]].concat()
    };
    match form {
        0 => Form::Whole(request),
        1 => Form::Half(request[..random.below(request.len())].to_vec()),
        2 => Form::Whole([replace("Connection: close", "Connection: keep-alive"), request.clone()].concat()),
        3 => Form::Whole(replace("Content-Type: application/json", "Content-Type: \u{7f}\u{ff}; x=\"")),
        4 => Form::Whole(replace(
            "Connection: close",
            &format!("Connection: close\r\nX: {}", "a".repeat(60_000)),
        )),
        _ => Form::Whole(replace("Content-Type:", "Transfer-Encoding: chunked\r\nContent-Type:")),
    }
}

#[cfg(test)]
mod tests {
    use narthex_server::fuzzing::Endpoint;
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_have_forms() {
        let request = b"POST / HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n\r\nbody";
        let mut random = Random::new(1);
        let mut form = |form| match formed(request.to_vec(), form, &mut random) {
            Form::Whole(bytes) => (true, String::from_utf8_lossy(&bytes).into_owned()),
            Form::Half(bytes) => (false, String::from_utf8_lossy(&bytes).into_owned()),
        };
        assert_eq!(form(0), (true, String::from_utf8_lossy(request).into_owned()));
        assert!(form(1).1.len() < request.len());
        assert_eq!(form(2).1.matches("POST").count(), 2);
        assert!(form(5).1.contains("chunked") && form(5).1.ends_with("\r\n\r\nbody"));
    }

    #[test]
    fn every_documented_route_and_method_is_attacked() {
        let document = json!({"paths": {
            "/a": {"get": {}, "post": {}}, "/v1/models/{id}": {"get": {}}, "/api/chat": {"post": {}},
        }});
        let routes = routes(&document).unwrap();
        let count = |method: &str, path: &str| -> usize {
            let same = |route: &&Route| route.method == method && route.path == path;
            routes.iter().filter(same).map(|route| route.count).sum()
        };
        let all: usize = routes.iter().map(|route| route.count).sum();
        assert!(all >= REQUESTS, "{all}");
        for (method, path) in
            [("GET", "/a"), ("POST", "/a"), ("GET", "/v1/models/{id}"), ("POST", "/api/chat")]
        {
            let found = count(method, path);
            assert!(found >= OF_ROUTE, "{method} {path}: {found}");
        }
        assert_eq!((count("PUT", "/a"), count("GET", "/openapi.json")), (1, OF_FURTHER));
        assert!(super::routes(&json!({"paths": {}})).is_err());
    }

    #[test]
    fn every_endpoint_has_a_body_of_its_own() {
        let bodies = seeds::of(Target::Request).unwrap();
        for Endpoint { path, .. } in Endpoint::all() {
            let topic = topic(path);
            let is_listed = bodies.iter().any(|body| body.name == topic);
            assert!(is_listed, "{path}: add a body named {topic} to xtask/src/fuzz/seeds/requests.rs");
        }
    }
}
