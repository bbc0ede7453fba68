//! The official SDKs against a running service: the acceptance checklist, once for each SDK.

use system_tests::environment::model;
use system_tests::scenario;
use system_tests::service::{Options, Service};

/// Limits that the checklist reaches: a file of 1001 lines, and a batch of millions of tokens.
const LIMITS: &str = "[limits]\nlines_per_file = 1000\nenqueued_tokens = 500000\n";

/// Starts a service as the checklist wants it; its log says only what went wrong.
fn start() -> Option<Service> {
    model()?;
    Some(Service::start(Options {
        config: Some(LIMITS.to_owned()),
        log: "warn".to_owned(),
        ..Options::default()
    }))
}

#[test]
fn newest_python_sdk_passes_the_acceptance_checklist() {
    if let Some(service) = start() {
        scenario::acceptance_python(&service, "latest");
    }
}

#[test]
fn older_python_sdk_passes_the_acceptance_checklist() {
    if let Some(service) = start() {
        scenario::acceptance_python(&service, "1.109.1");
    }
}

#[test]
fn node_sdk_passes_the_acceptance_checklist() {
    if let Some(service) = start() {
        scenario::acceptance_node(&service);
    }
}
