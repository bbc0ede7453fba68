//! The scenarios that also run behind API Gateway, on one machine.

use system_tests::environment::model;
use system_tests::scenario;
use system_tests::service::{Options, Service};

fn start() -> Option<Service> {
    model()?;
    Some(Service::start(Options {
        config: Some("[testing]\nwindow_seconds = 12\n".to_owned()),
        ..Options::default()
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_batch_completes() {
    if let Some(service) = start() {
        scenario::mixed_batch(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_is_uploaded_in_parts() {
    if let Some(service) = start() {
        scenario::upload_in_parts(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_batch_keeps_what_is_done() {
    if let Some(service) = start() {
        scenario::cancel(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_batch_keeps_what_is_done() {
    if let Some(service) = start() {
        scenario::expiry(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_its_worker_is_killed() {
    if let Some(mut service) = start() {
        scenario::killed_worker(&mut service).await;
    }
}
