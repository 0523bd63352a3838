//! Formatting of numbers in messages.

/// Returns a count with its noun: `1 piece`, `2 pieces`.
pub(super) fn plural(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Returns a count with an SI suffix: `1.2 G`.
pub(super) fn count(count: u64) -> String {
    match count as f64 {
        n if n >= 1e9 => format!("{:.1} G", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.1} k", n / 1e3),
        _ => count.to_string(),
    }
}
