//! Prints what a batch of 1,000,000 lines costs: `cargo bench -p system-tests --bench cost -- [LINES A SHARD]`.

use std::io::Write as _;

#[path = "mod.rs"]
mod cost;

fn main() {
    let mut number = std::env::args().filter_map(|argument| argument.parse().ok());
    let lines_per_shard = number.next_back().unwrap_or(50);
    let tables = format!(
        "{}\n{}",
        cost::simulate(lines_per_shard),
        cost::idle_month()
    );
    let written = std::io::stdout().write_all(tables.as_bytes());
    written.expect("print the table");
}
