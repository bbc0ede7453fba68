//! What a test needs from outside, and what happens when it is not there.

use std::path::PathBuf;

/// Returns the default model's file; none, loudly, where it is absent.
///
/// # Panics
///
/// If it is absent and `REQUIRE_MODEL=1`.
#[must_use]
pub fn model() -> Option<PathBuf> {
    want(
        "NIGHTSHIFT_TEST_MODEL",
        "REQUIRE_MODEL",
        "the default model",
    )
}

/// Returns the folder with the official SDKs; none, loudly, where it is absent.
///
/// # Panics
///
/// If it is absent and `REQUIRE_SDKS=1`.
#[must_use]
pub fn sdks() -> Option<PathBuf> {
    want("NIGHTSHIFT_TEST_SDKS", "REQUIRE_SDKS", "the OpenAI SDKs")
}

#[expect(clippy::print_stderr, reason = "a skip must be seen")]
fn want(variable: &str, requires: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.exists());
    if path.is_none() {
        let message = format!(
            "{what} is absent ({variable} does not name it): run tests/run-tests after `make test`"
        );
        assert!(
            std::env::var_os(requires).is_none_or(|value| value != "1"),
            "{message}"
        );
        eprintln!("SKIPPED: {message}");
    }
    path
}

/// Returns the `nightshift` program: `NIGHTSHIFT_BIN`, or the one beside the test.
///
/// # Panics
///
/// If it has not been built.
#[must_use]
pub fn nightshift() -> PathBuf {
    if let Some(path) = std::env::var_os("NIGHTSHIFT_BIN") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test
        .ancestors()
        .nth(2)
        .expect("a test lies in target/<profile>/deps")
        .join("nightshift");
    assert!(
        path.exists(),
        "{} is not built: run `cargo build -p nightshift`",
        path.display()
    );
    path
}
