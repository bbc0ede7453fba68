//! The ports on AWS: DynamoDB for records, S3 for blobs, SQS for queues.
//!
//! Clients are made once, from the environment, without a call to anything. `AWS_ENDPOINT_URL` points them
//! to an emulator. The SDK repeats what may be repeated; where a repetition could lie about its outcome, the
//! adapters see to it that it does not.

mod blobs;
mod connection;
mod deployment;
mod failure;
mod patience;
mod queue;
mod records;
pub mod weights;

use std::sync::Arc;

use aws_config::SdkConfig;

use crate::platform::{Platform, system_clock, system_randomness};
use crate::port::{Blobs, Queue, Records};

pub use deployment::{Deployment, InvalidDeployment, Profile, Resources};

/// The adapters of one deployment.
#[derive(Clone)]
pub struct Aws {
    /// The table.
    pub records: Arc<dyn Records>,
    /// The bucket.
    pub blobs: Arc<dyn Blobs>,
    /// The queues.
    pub queue: Arc<dyn Queue>,
}

impl Aws {
    /// Makes clients with the credentials and the region of the environment. Calls nothing: credentials are
    /// looked up at the first use, and a region that the environment does not name is read out of the
    /// queues' address.
    pub async fn connect(resources: &Resources) -> Self {
        Self::over(resources, &connection::from_environment(resources).await)
    }

    /// Makes clients over a configuration of the caller's own. Retries and timeouts are the adapters'.
    #[must_use]
    pub fn over(resources: &Resources, config: &SdkConfig) -> Self {
        let table = resources.table.as_str();
        let bucket = resources.bucket.as_str();
        let prefix = resources.queue_url_prefix.as_str();
        Self {
            records: Arc::new(records::DynamoRecords::new(
                connection::dynamodb(config),
                table,
            )),
            blobs: Arc::new(blobs::S3Blobs::new(connection::s3(config), bucket)),
            queue: Arc::new(queue::SqsQueue::new(connection::sqs(config), prefix)),
        }
    }

    /// Returns the ports with the clock and randomness of the operating system.
    #[must_use]
    pub fn platform(&self) -> Platform {
        Platform {
            records: Arc::clone(&self.records),
            blobs: Arc::clone(&self.blobs),
            queue: Arc::clone(&self.queue),
            clock: system_clock(),
            random: system_randomness(),
        }
    }
}

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws").finish_non_exhaustive()
    }
}
