//! Values as text for people.

mod bench;
mod keys;
mod models;
mod package;
mod plan;
mod runtimes;
mod server_state;
mod startup;
mod status;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use console::Term;

pub(crate) use self::{
    bench::{bench, comparison, packages, pictures},
    keys::keys,
    models::{CATALOGUE_LEGEND, catalogue, disk_usage, installed, removal},
    package::{certificate, changes, contexts, manifest},
    plan::plan,
    runtimes::{doctor, runtime_installed, runtimes},
    server_state::server_states,
    startup::startup,
    status::{answer_line, servers},
};

/// Renders bytes in decimal units: `98.4 MB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Columns of an output that is not a terminal.
const PIPED_COLUMNS: u16 = 80;

/// Returns the columns of standard output.
fn columns() -> u16 {
    Term::stdout().size_checked().map_or(PIPED_COLUMNS, |(_, columns)| columns.max(PIPED_COLUMNS))
}

/// Returns a table, whose cells are broken where it is wider than a terminal.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(Cell::new));
    if let Some((_, columns)) = Term::stdout().size_checked() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let check = |value, expected: &str| assert_eq!(bytes(value), expected);
        check(0, "0 B");
        check(999, "999 B");
        check(1_000, "1.0 kB");
        check(98_362_432, "98 MB");
        check(9_960_000_000, "10 GB");
    }
}
