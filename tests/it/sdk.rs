//! The official SDKs against a running service: the acceptance checklist, once for each SDK.

use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::environment::{model, nightshift, sdks};
use system_tests::service::{Options, Service};

/// Limits that the checklist reaches: a file of 1001 lines, and a batch of millions of tokens.
const LIMITS: &str = "[limits]\nlines_per_file = 1000\nenqueued_tokens = 500000\n";

/// Where the scripts lie.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk")
}

/// Runs a script against the service, and fails with all that it printed unless it ends well.
pub(crate) fn run_script(service: &Service, command: &mut Command) {
    let output = command
        .env("OPENAI_BASE_URL", service.base_url())
        .env("OPENAI_API_KEY", service.api_key())
        .env("NIGHTSHIFT_BIN", nightshift())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // A proxy of the machine is not for the service beside the test.
        .env("NO_PROXY", "127.0.0.1")
        .env_remove("OPENAI_ORG_ID")
        .env_remove("OPENAI_PROJECT_ID")
        .output()
        .expect("run the script");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{stdout}\n{stderr}\nservice:\n{}",
        output.status,
        service.log_text()
    );
}

/// Starts a service as the checklist wants it; its log says only what went wrong.
fn start() -> Service {
    Service::start(Options {
        config: Some(LIMITS.to_owned()),
        log: "warn".to_owned(),
        ..Options::default()
    })
}

fn check_python(version: &str) {
    let (Some(_), Some(sdks)) = (model(), sdks()) else {
        return;
    };
    let service = start();
    let python = sdks.join(format!("python-{version}/bin/python"));
    run_script(
        &service,
        Command::new(python).arg(scripts().join("acceptance.py")),
    );
}

#[test]
fn newest_python_sdk_passes_the_acceptance_checklist() {
    check_python("latest");
}

#[test]
fn older_python_sdk_passes_the_acceptance_checklist() {
    check_python("1.109.1");
}

#[test]
fn node_sdk_passes_the_acceptance_checklist() {
    let (Some(_), Some(sdks)) = (model(), sdks()) else {
        return;
    };
    let service = start();
    let mut node = Command::new("node");
    node.arg(scripts().join("acceptance.mjs"))
        .env("NIGHTSHIFT_NODE_SDK", sdks.join("node"));
    run_script(&service, &mut node);
}
