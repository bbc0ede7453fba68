//! The finalize function on AWS Lambda.

use std::process::ExitCode;

use batch_core::message::QueueName;
use finalize::{Context, handle};
use function_runtime::run;

fn main() -> ExitCode {
    run(|function| async move {
        let context = Context {
            platform: function.platform.clone(),
            store: function.store.clone(),
        };
        let context = &context;
        function
            .serve_queue(QueueName::Finalize, |job, now, invocation| {
                handle(context, job, now, Some(invocation.deadline))
            })
            .await
    })
}
