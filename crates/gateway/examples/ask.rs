//! x
use narthex_gateway::{*, request::*};
fn main() {
    disable_telemetry();
    let args: Vec<String> = std::env::args().collect();
    let gateway = Gateway::open(Config { scheme: Some(args[1].parse().unwrap()), ..Config::standard() }).unwrap();
    let sink = |p: narthex_spec::Progress| eprintln!("{p:?}");
    let t = std::time::Instant::now();
    let status = match gateway.load("smollm2:135m", &sink, &Cancel::new()) { Ok(s) => s, Err(e) => { eprintln!("{e} {:?}", e.hint()); return } };
    eprintln!("{status:?} {:?}", t.elapsed());
    struct S(std::sync::mpsc::Sender<TurnEvent>);
    impl TurnSink for S { fn event(&mut self, e: TurnEvent) -> std::ops::ControlFlow<()> { let _ = self.0.send(e); std::ops::ControlFlow::Continue(()) } }
    let (tx, rx) = std::sync::mpsc::channel();
    let options = GenerateOptions { temperature: 0.0, max_tokens: Some(40), ..GenerateOptions::api_defaults() };
    gateway.chat("smollm2:135m", ChatRequest { messages: vec![Message::new(Role::User, args[2].clone())], options }, Box::new(S(tx))).unwrap();
    for e in rx { println!("{e:?}"); }
}
