//! From `main` to the first event, and the exit status.

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::function::Function;
use crate::logging;

/// What the Lambda service sets for every program. The runtime library panics without them.
const LAMBDA_VARIABLES: [&str; 4] = [
    "AWS_LAMBDA_RUNTIME_API",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_VERSION",
];

/// Starts a function: logs, the deployment of the environment, its clients; then runs `program`.
///
/// Returns success once the program was told to stop. Whatever keeps it from starting or serving is one
/// line in the log, and a failure: Lambda then starts it anew.
pub fn run<F, Fut>(program: F) -> ExitCode
where
    F: FnOnce(Function) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    logging::start();
    match start(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "cannot run this function");
            ExitCode::FAILURE
        }
    }
}

fn start<F, Fut>(program: F) -> anyhow::Result<()>
where
    F: FnOnce(Function) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    for variable in LAMBDA_VARIABLES {
        anyhow::ensure!(
            std::env::var_os(variable).is_some(),
            "the environment variable {variable} is not set: AWS Lambda runs this program"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the threads")?;
    let ended = runtime.block_on(async {
        let function = Function::connect().await?;
        program(function).await
    });
    // A thread that still cuts a file must not hold up the end: losing it loses nothing.
    runtime.shutdown_background();
    ended
}
