//! Logs on stderr. `NIGHTSHIFT_LOG` filters them, as in `NIGHTSHIFT_LOG=worker=debug`.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging, at `default_level` unless the environment says otherwise.
pub(crate) fn start(default_level: &str, as_json: bool) {
    let filter =
        EnvFilter::try_from_env("NIGHTSHIFT_LOG").unwrap_or_else(|_| EnvFilter::new(default_level));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // A second call would come from a test; the first one's settings stay.
    let _ = if as_json {
        logs.json().try_init()
    } else {
        logs.try_init()
    };
}
