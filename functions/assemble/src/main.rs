//! The assemble function on AWS Lambda.

use std::process::ExitCode;

use assemble::{Context, handle};
use batch_core::message::QueueName;
use function_runtime::run;

fn main() -> ExitCode {
    run(|function| async move {
        let context = Context {
            platform: function.platform.clone(),
            store: function.store.clone(),
        };
        let context = &context;
        function
            .serve_queue(QueueName::Assemble, |job, _, _| handle(context, job))
            .await
    })
}
