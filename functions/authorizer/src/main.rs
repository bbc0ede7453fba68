//! The authorizer function on AWS Lambda.

use std::process::ExitCode;

use authorizer::{Refusal, Request, handle};
use function_runtime::{Failure, run, serve_json};

fn main() -> ExitCode {
    run(|function| async move {
        let function = &function;
        serve_json(|event, _| async move {
            // An error of the parser may quote a header.
            let request: Request = serde_json::from_value(event).map_err(|_| {
                Failure::new(
                    "UnknownEvent",
                    "this function takes requests of API Gateway",
                )
            })?;
            let (now, entropy) = ((function.platform.clock)(), (function.platform.random)());
            handle(&function.store, &request, now, entropy)
                .await
                .map_err(|refusal| match refusal {
                    Refusal::Unauthorized => Failure::new("Refusal", "Unauthorized"),
                    Refusal::Unknown => Failure::new("Refusal", "the store cannot tell"),
                })
        })
        .await
    })
}
