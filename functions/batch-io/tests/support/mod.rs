//! A deployment on an emulator: a table, a bucket, queues, and a proxy for the weather between.

mod emulator;
mod faster;
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType,
};
use aws_sdk_s3::config::{Credentials, SharedCredentialsProvider};
use batch_io::aws::{Aws, Resources};
use batch_io::conformance::{Advance, Subject};
use batch_io::port::Queue;

pub(crate) use emulator::Emulator;
pub(crate) use faster::{Faster, TIMES_FASTER};
pub(crate) use proxy::{Answer, Call, Fault, Plan, Proxy, fetch};

/// Numbers the deployments of this process: all share one emulator.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Long enough for every property: what an advance waits beyond has nothing to wait for.
const SLEEP_MAX: Duration = Duration::from_secs(15);

/// A deployment of its own, reached through a proxy that is clear until it is told otherwise.
pub(crate) struct Deployed {
    pub(crate) aws: Aws,
    pub(crate) proxy: Proxy,
    pub(crate) resources: Resources,
    /// Leads past the proxy.
    pub(crate) direct: SdkConfig,
    /// Lives as long as anyone needs it.
    _emulator: Arc<Emulator>,
}

impl Deployed {
    /// Makes table and bucket; none if there is no emulator, which is said.
    pub(crate) async fn new() -> Option<Self> {
        let emulator = Emulator::shared().await?;
        let proxy = Proxy::start(emulator.port).await;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let resources = Resources {
            table: format!("records-{n}"),
            bucket: format!("blobs-{n}"),
            queue_url_prefix: format!("http://127.0.0.1:{}/000000000000/d{n}-", emulator.port),
        };
        let direct = config(emulator.port).await;
        make_table(&direct, &resources.table).await;
        let s3 = aws_sdk_s3::config::Builder::from(&direct).force_path_style(true);
        let s3 = aws_sdk_s3::Client::from_conf(s3.build());
        s3.create_bucket()
            .bucket(&resources.bucket)
            .send()
            .await
            .unwrap();
        Some(Self {
            aws: Aws::over(&resources, &config(proxy.port).await),
            proxy,
            resources,
            direct,
            _emulator: emulator,
        })
    }

    /// The queues of the conformance suite, in a time that runs faster than real.
    pub(crate) fn queue(&self, calm: bool) -> Subject<dyn Queue> {
        let prefix = self
            .resources
            .queue_url_prefix
            .rsplit_once('/')
            .unwrap()
            .1
            .to_owned();
        let sqs = aws_sdk_sqs::Client::new(&self.direct);
        let port: Arc<dyn Queue> = Arc::new(Faster::new(Arc::clone(&self.aws.queue), sqs, prefix));
        self.subject(port, calm)
    }

    /// A port of this deployment as the suite wants it.
    pub(crate) fn subject<P: ?Sized>(&self, port: Arc<P>, calm: bool) -> Subject<P> {
        let advance: Advance =
            Arc::new(|span| Box::pin(tokio::time::sleep((span / TIMES_FASTER).min(SLEEP_MAX))));
        Subject {
            port,
            advance,
            lag: Duration::ZERO,
            calm,
        }
    }
}

async fn config(port: u16) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "tests");
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .load()
        .await
}

/// The table that Terraform makes.
async fn make_table(config: &SdkConfig, table: &str) {
    let key = |name: &str, kind| {
        KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(kind)
            .build()
            .unwrap()
    };
    let attribute = |name: &str, kind| {
        let attribute = AttributeDefinition::builder().attribute_name(name);
        attribute.attribute_type(kind).build().unwrap()
    };
    let work = GlobalSecondaryIndex::builder()
        .index_name("work")
        .key_schema(key("wk", KeyType::Hash))
        .key_schema(key("due", KeyType::Range))
        .projection(
            Projection::builder()
                .projection_type(ProjectionType::KeysOnly)
                .build(),
        );
    aws_sdk_dynamodb::Client::new(config)
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key("pk", KeyType::Hash))
        .key_schema(key("sk", KeyType::Range))
        .attribute_definitions(attribute("pk", ScalarAttributeType::S))
        .attribute_definitions(attribute("sk", ScalarAttributeType::S))
        .attribute_definitions(attribute("wk", ScalarAttributeType::S))
        .attribute_definitions(attribute("due", ScalarAttributeType::N))
        .global_secondary_indexes(work.build().unwrap())
        .send()
        .await
        .unwrap();
}
