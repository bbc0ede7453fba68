//! The scenarios through API Gateway's URL on a running stack: `tests/run-localstack` starts one and runs these.

use system_tests::scenario;
use system_tests::site::{Site as _, Stack};

/// Most memory of the API function, in KiB: 256 MB (256,000,000 / 1,024).
const API_PEAK_KIB_MAX: u64 = 256_000_000 / 1024;

#[test]
fn newest_python_sdk_passes_the_acceptance_checklist() {
    scenario::acceptance_python(&Stack::of_environment(), "latest");
}

#[test]
fn node_sdk_passes_the_acceptance_checklist() {
    scenario::acceptance_node(&Stack::of_environment());
}

#[test]
fn every_wire_case_leads_to_what_it_says() {
    scenario::wire_cases(&Stack::of_environment());
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_batch_completes() {
    scenario::mixed_batch(&Stack::of_environment()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_is_uploaded_in_parts() {
    scenario::upload_in_parts(&Stack::of_environment()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_batch_keeps_what_is_done() {
    scenario::cancel(&Stack::of_environment()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_batch_keeps_what_is_done() {
    scenario::expiry(&Stack::of_environment()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_completes_when_its_worker_is_killed() {
    scenario::killed_worker(&mut Stack::of_environment()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_of_200_mb_passes_through_in_little_memory() {
    let stack = Stack::of_environment();
    scenario::large_upload(&stack).await;
    let peak = stack
        .peak_kib_of_function("api")
        .expect("the API function runs on this machine");
    assert!(
        peak < API_PEAK_KIB_MAX,
        "{peak} KiB at {}",
        stack.base_url()
    );
}
