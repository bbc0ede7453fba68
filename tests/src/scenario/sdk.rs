//! The official SDKs: the acceptance checklist and the wire cases.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::environment::{nightshift, sdks};
use crate::site::Site;

/// Where the scripts lie.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk")
}

/// Runs a script against the site, and fails with all that it printed unless it ends well.
fn run_script(site: &dyn Site, command: &mut Command) {
    let output = command
        .env("OPENAI_BASE_URL", site.base_url())
        .env("OPENAI_API_KEY", site.api_key())
        .env("NIGHTSHIFT_BIN", nightshift())
        .env(
            "NIGHTSHIFT_BEHIND_GATEWAY",
            if site.is_behind_gateway() { "1" } else { "" },
        )
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
        site.log_text()
    );
}

/// Runs the acceptance checklist with a Python SDK; nothing where the SDKs are absent.
///
/// # Panics
///
/// If a check fails.
pub fn acceptance_python(site: &dyn Site, version: &str) {
    let Some(sdks) = sdks() else { return };
    let python = sdks.join(format!("python-{version}/bin/python"));
    run_script(
        site,
        Command::new(python).arg(scripts().join("acceptance.py")),
    );
}

/// Runs the acceptance checklist with the Node SDK; nothing where the SDKs are absent.
///
/// # Panics
///
/// If a check fails.
pub fn acceptance_node(site: &dyn Site) {
    let Some(sdks) = sdks() else { return };
    let mut node = Command::new("node");
    node.arg(scripts().join("acceptance.mjs"))
        .env("NIGHTSHIFT_NODE_SDK", sdks.join("node"));
    run_script(site, &mut node);
}

/// Runs the cases of `cases/wire`; nothing where the SDKs are absent.
///
/// # Panics
///
/// If a case differs.
pub fn wire_cases(site: &dyn Site) {
    let Some(sdks) = sdks() else { return };
    run_script(
        site,
        Command::new(sdks.join("python-latest/bin/python")).arg(scripts().join("wire_cases.py")),
    );
}
