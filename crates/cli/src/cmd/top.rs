//! `narthex top`: the state of the running servers, again and again.
//!
//! On a terminal, each state replaces the one before, and a key ends the command. Otherwise each state is printed after the
//! one before.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, stdin, stdout},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use console::{Key, Term};
use narthex_gateway::Gateway;
use serde_json::{Value, json};

use crate::{
    args::TopArgs,
    interrupt, output, render,
    running_server::{self, ServerState},
};

/// Number of requests that are shown of each server.
const REQUESTS: usize = 8;

/// Time between two looks for a signal.
const WAIT: Duration = Duration::from_millis(100);

/// Shows the state of the running servers until a key or a signal.
pub(crate) fn run(gateway: &Gateway, args: &TopArgs) -> anyhow::Result<()> {
    let is_live = !args.once && !args.json && stdin().is_terminal() && stdout().is_terminal();
    let keys = is_live.then(keys).transpose()?;
    let mut screen = Screen::default();
    let mut rates = TokenRates::default();

    loop {
        let servers = running_server::states(gateway, REQUESTS);
        let shown = rates.of(&servers, Instant::now());
        if args.json {
            output::line(json!({"servers": with_rates(&servers, &shown)}))?;
        } else {
            let frame = render::server_states(&servers, &shown);
            if is_live { screen.replace(&frame)? } else { output::report(frame)? }
        }
        if args.once || is_ended(keys.as_ref(), Duration::from_secs(args.interval)) {
            return Ok(());
        }
    }
}

/// Waits for the next refresh. Returns true if a key or a signal ends the command before.
fn is_ended(keys: Option<&Receiver<Key>>, interval: Duration) -> bool {
    let end = Instant::now() + interval;
    while Instant::now() < end {
        if interrupt::cancel().is_cancelled() {
            return true;
        }
        let wait = WAIT.min(end.saturating_duration_since(Instant::now()));
        match keys.map(|keys| keys.recv_timeout(wait)) {
            Some(Ok(Key::Char('q' | 'Q') | Key::Escape)) => return true,
            // The thread has ended, because the terminal cannot be read any more.
            Some(Err(RecvTimeoutError::Disconnected)) => return true,
            Some(Ok(_) | Err(RecvTimeoutError::Timeout)) => {}
            None => thread::sleep(wait),
        }
    }
    false
}

/// Starts to read the keys of the terminal. The thread ends with the key that ends the command, so that the terminal is
/// left in its usual mode.
fn keys() -> anyhow::Result<Receiver<Key>> {
    let (sender, receiver) = channel();
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        let term = Term::stdout();
        while let Ok(key) = term.read_key() {
            let ends = matches!(key, Key::Char('q' | 'Q') | Key::Escape);
            if sender.send(key).is_err() || ends {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// The part of the terminal that the last state takes.
#[derive(Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    /// Replaces the last state. Lines and rows that the terminal has no room for are left out.
    fn replace(&mut self, frame: &str) -> anyhow::Result<()> {
        let term = Term::stdout();
        let (rows, columns) = term.size();
        let shown = output::without_controls(frame);
        let lines = shown.lines().take(usize::from(rows).saturating_sub(2));
        let lines: Vec<_> =
            lines.map(|line| console::truncate_str(line, usize::from(columns), "…")).collect();
        term.clear_last_lines(self.lines)?;
        for line in &lines {
            term.write_line(line)?;
        }
        term.write_line("q ends")?;
        self.lines = lines.len() + 1;
        Ok(())
    }
}

/// Tokens that the models of the servers had generated at the last state.
#[derive(Default)]
struct TokenRates {
    last: Option<(Instant, BTreeMap<String, u64>)>,
}

impl TokenRates {
    /// Returns the generated tokens a second of each server since the last state; at the first state, those of the server's
    /// own last sample, if it has one.
    fn of(&mut self, servers: &[ServerState], now: Instant) -> Vec<Option<f64>> {
        let counts: BTreeMap<String, u64> =
            servers.iter().map(|server| (server.address.clone(), generated(&server.health))).collect();
        let rates = servers.iter().map(|server| match &self.last {
            Some((then, before)) => {
                let before = *before.get(&server.address)?;
                let seconds = now.saturating_duration_since(*then).as_secs_f64().max(1e-3);
                // The count of a model begins again at each load.
                Some(counts[&server.address].saturating_sub(before) as f64 / seconds)
            }
            None => server.sample["tokens_per_second"].as_f64(),
        });
        let rates = rates.collect();
        self.last = Some((now, counts));
        rates
    }
}

/// Returns the number of tokens that the models of a server have generated.
fn generated(health: &Value) -> u64 {
    let models = health["models"].as_array().into_iter().flatten();
    models.filter_map(|model| model["engine"]["generated_tokens"].as_u64()).sum()
}

/// Returns the states as JSON, with the tokens a second.
fn with_rates(servers: &[ServerState], rates: &[Option<f64>]) -> Vec<Value> {
    let servers = servers.iter().zip(rates);
    servers
        .map(|(server, rate)| {
            json!({
                "address": server.address, "tokens_per_second": rate, "health": server.health,
                "requests": server.requests,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(address: &str, generated: u64) -> ServerState {
        ServerState {
            address: address.to_owned(),
            health: json!({"models": [{"engine": {"generated_tokens": generated}}, {"engine": null}]}),
            sample: json!({"tokens_per_second": 2.5}),
            requests: Vec::new(),
        }
    }

    #[test]
    fn rates_are_those_since_the_last_state() {
        let mut rates = TokenRates::default();
        let start = Instant::now();
        let mut at =
            |seconds, servers: &[ServerState]| rates.of(servers, start + Duration::from_secs(seconds));
        assert_eq!(at(0, &[state("a", 100)]), [Some(2.5)]);
        assert_eq!(at(2, &[state("a", 150), state("b", 9)]), [Some(25.0), None]);
        assert_eq!(at(4, &[state("a", 10), state("b", 11)]), [Some(0.0), Some(1.0)], "a was loaded again");
    }

    #[test]
    fn a_state_in_json_has_its_rate() {
        let servers = [state("a", 1)];
        let found = with_rates(&servers, &[Some(3.0)]);
        assert_eq!(found[0]["tokens_per_second"], 3.0);
        assert_eq!(found[0]["health"], servers[0].health);
    }
}
