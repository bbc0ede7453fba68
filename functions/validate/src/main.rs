//! The validate function on AWS Lambda.

use std::process::ExitCode;
use std::sync::Arc;

use batch_core::message::QueueName;
use function_runtime::run;
use validate::{Context, handle};

fn main() -> ExitCode {
    run(|function| async move {
        let context = Context {
            platform: function.platform.clone(),
            store: function.store.clone(),
            catalog: Arc::clone(&function.catalog),
            settings: function.settings,
        };
        let context = &context;
        function
            .serve_queue(QueueName::Validate, |job, now, _| handle(context, job, now))
            .await
    })
}
