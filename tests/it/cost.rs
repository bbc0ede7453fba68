//! What the control plane costs on AWS, by counted calls and list prices.

#[path = "../bench/cost/mod.rs"]
mod simulation;

use simulation::{idle_month, simulate};

/// Dollars for 1,000,000 lines.
const DOLLARS_MAX: f64 = 0.15;

/// Dollars for a month of an idle control plane, without what is priced by the piece (keys, alarms, rules).
const IDLE_DOLLARS_MAX: f64 = 2.0;

#[test]
fn a_million_lines_cost_at_most_fifteen_cents() {
    let bill = simulate(20);
    assert!(bill.dollars() <= DOLLARS_MAX, "{bill}");
}

#[test]
fn idle_month_costs_at_most_two_dollars() {
    let bill = idle_month();
    assert!(bill.dollars() <= IDLE_DOLLARS_MAX, "{bill}");
}
