//! The log: one JSON object a line on stdout, which Lambda keeps. Never what a user wrote.
//!
//! `NIGHTSHIFT_LOG` sets the level of our own crates (`error`, `warn`, `info`, `debug`, `trace`). Others never
//! say more than warnings: below that they print events, requests and headers.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What our crates' names begin with.
const OURS: [&str; 11] = [
    "api",
    "assemble",
    "authorizer",
    "batch_core",
    "batch_io",
    "dispatch",
    "finalize",
    "function_runtime",
    "nightshift",
    "reconcile",
    "validate",
];

/// Starts the log, and logs panics by their place alone: their messages may quote what a user wrote.
pub(crate) fn start() {
    let wanted = std::env::var("NIGHTSHIFT_LOG").ok();
    let level = wanted.as_deref().map_or(Ok(LevelFilter::INFO), str::parse);
    let logs = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .with_filter(targets(*level.as_ref().unwrap_or(&LevelFilter::INFO)));
    // A second start can only come from a test; the first one's settings stay.
    let _ = tracing_subscriber::registry().with(logs).try_init();
    if level.is_err() {
        tracing::warn!(
            wanted,
            "NIGHTSHIFT_LOG is no level: it is one of error, warn, info, debug and trace"
        );
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "a thread panicked; please report this place");
    }));
}

fn targets(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(LevelFilter::WARN)
        // Its span carries the id of the invocation.
        .with_target("lambda_runtime::layers::trace", LevelFilter::INFO)
        .with_targets(OURS.map(|name| (name, level)))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn only_our_crates_say_more_than_warnings() {
        let targets = targets(LevelFilter::TRACE);
        for ours in ["nightshift_api", "validate::cut", "batch_io::aws::queue"] {
            assert!(targets.would_enable(ours, &Level::TRACE), "{ours}");
        }
        for other in [
            "lambda_runtime::layers::api_response",
            "hyper",
            "aws_smithy_runtime",
        ] {
            assert!(!targets.would_enable(other, &Level::INFO), "{other}");
            assert!(targets.would_enable(other, &Level::WARN), "{other}");
        }
        assert!(targets.would_enable("lambda_runtime::layers::trace", &Level::INFO));
    }
}
