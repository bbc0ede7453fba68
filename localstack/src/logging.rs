//! Logs on stderr. `NIGHTSHIFT_LOG` filters them, as in `NIGHTSHIFT_LOG=worker=debug`.
//!
//! A panic is logged by its place alone: its message may quote what a user wrote.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::failure::usage;

/// Starts logging, at `default_level` unless the environment says otherwise.
pub(crate) fn start(default_level: &str, as_json: bool) -> anyhow::Result<()> {
    let filter = match std::env::var("NIGHTSHIFT_LOG") {
        Ok(wanted) => EnvFilter::try_new(&wanted).map_err(|error| {
            usage(format!(
                "NIGHTSHIFT_LOG={wanted} is no log filter ({error}); try 'info' or 'info,worker=debug'"
            ))
        })?,
        Err(_) => EnvFilter::new(default_level),
    };
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
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let thread = std::thread::current().name().map(str::to_owned);
        tracing::error!(
            ?thread,
            ?place,
            "a thread panicked; please report this place"
        );
    }));
    Ok(())
}
