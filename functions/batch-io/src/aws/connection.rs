//! How the clients reach AWS: region, retries, timeouts, and the form of addresses. Calls nothing.

use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};

use super::deployment::Resources;

/// Tries of one call, the first included.
const TRIES: u32 = 5;

/// The first pause before a repetition is up to this long; each next up to twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(3);

/// Until DynamoDB begins to answer: it does so in milliseconds, or not at all.
const RECORDS_ANSWER: Duration = Duration::from_secs(5);

/// Until S3 begins to answer, which it does when it has a whole part.
const BLOBS_ANSWER: Duration = Duration::from_secs(60);

/// Until SQS begins to answer: a long poll of 20 s must live.
const QUEUE_ANSWER: Duration = Duration::from_secs(30);

/// Any region will do for an emulator that was named none.
const EMULATED_REGION: &str = "us-east-1";

/// Loads what the environment says. Asks no metadata service for a region: the default chain would, and the
/// queues' address names it as well.
pub(super) async fn from_environment(resources: &Resources) -> SdkConfig {
    let named = region_in(&resources.queue_url_prefix).unwrap_or(EMULATED_REGION);
    let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(Region::new(named.to_owned()));
    aws_config::defaults(BehaviorVersion::latest())
        .region(region)
        .load()
        .await
}

/// Returns the region in an address like `https://sqs.eu-west-1.amazonaws.com/123456789012/`.
fn region_in(queue_url: &str) -> Option<&str> {
    let host = queue_url.split_once("://")?.1.split(['/', ':']).next()?;
    let (region, domain) = host.strip_prefix("sqs.")?.split_once('.')?;
    domain.starts_with("amazonaws.com").then_some(region)
}

/// Makes the client of the table.
pub(super) fn dynamodb(config: &SdkConfig) -> aws_sdk_dynamodb::Client {
    let config = aws_sdk_dynamodb::config::Builder::from(config)
        .retry_config(retries())
        .timeout_config(timeouts(RECORDS_ANSWER));
    aws_sdk_dynamodb::Client::from_conf(config.build())
}

/// Makes the client of the bucket. An emulator serves no bucket as a host name.
pub(super) fn s3(config: &SdkConfig) -> aws_sdk_s3::Client {
    let emulated =
        config.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_S3").is_some();
    let config = aws_sdk_s3::config::Builder::from(config)
        .retry_config(retries())
        .timeout_config(timeouts(BLOBS_ANSWER))
        .force_path_style(emulated);
    aws_sdk_s3::Client::from_conf(config.build())
}

/// Makes the client of the queues.
pub(super) fn sqs(config: &SdkConfig) -> aws_sdk_sqs::Client {
    let config = aws_sdk_sqs::config::Builder::from(config)
        .retry_config(retries())
        .timeout_config(timeouts(QUEUE_ANSWER));
    aws_sdk_sqs::Client::from_conf(config.build())
}

fn retries() -> RetryConfig {
    RetryConfig::standard()
        .with_max_attempts(TRIES)
        .with_initial_backoff(PAUSE)
        .with_max_backoff(PAUSE_MAX)
}

fn timeouts(answer: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .read_timeout(answer)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queues_address_names_its_region() {
        let table = [
            (
                "https://sqs.eu-west-1.amazonaws.com/123456789012/nightshift-",
                Some("eu-west-1"),
            ),
            (
                "https://sqs.cn-north-1.amazonaws.com.cn/1/x-",
                Some("cn-north-1"),
            ),
            ("http://127.0.0.1:4566/000000000000/nightshift-", None),
            ("https://sqs.example.com/1/", None),
            ("nonsense", None),
        ];
        for (address, region) in table {
            assert_eq!(region_in(address), region, "{address}");
        }
    }
}
