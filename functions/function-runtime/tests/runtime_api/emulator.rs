//! A fresh emulator of AWS with the resources of one deployment.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType,
};
use batch_core::settings::Timing;
use batch_io::aws::{Aws, Resources};
use batch_io::store::Store;
use tempfile::TempDir;

/// Until an emulator serves.
const START_MAX: Duration = Duration::from_secs(30);

const TABLE: &str = "test-records";
const BUCKET: &str = "test-bytes";

/// A queue hides a message for so long that no test would live to see it again.
const VISIBILITY_S: u32 = 3_600;

/// A running emulator.
pub(crate) struct Emulator {
    process: Child,
    address: String,
    _folder: TempDir,
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the emulator's program, or none and says so. `REQUIRE_EMULATOR=1` makes that a failure.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("NIGHTSHIFT_TEST_MINISTACK").map(PathBuf::from);
    if path.is_none() {
        let required = std::env::var("REQUIRE_EMULATOR").is_ok_and(|required| required == "1");
        assert!(!required, "NIGHTSHIFT_TEST_MINISTACK names no emulator");
        eprintln!("SKIPPED: NIGHTSHIFT_TEST_MINISTACK names no emulator");
    }
    path
}

impl Emulator {
    /// Starts MiniStack, and makes the table, the bucket and the queues.
    pub(crate) async fn start(program: PathBuf) -> Self {
        let port = {
            let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            free.local_addr().unwrap().port()
        };
        let address = format!("http://127.0.0.1:{port}");
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new(program)
            .env("BIND_HOST", "127.0.0.1")
            .env("GATEWAY_PORT", port.to_string())
            .env("MINISTACK_HOST", "127.0.0.1")
            .env("AWS_ENDPOINT_URL", &address)
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let emulator = Self {
            process,
            address,
            _folder: folder,
        };
        emulator.wait(port).await;
        emulator.make_resources().await;
        emulator
    }

    async fn wait(&self, port: u16) {
        let began = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            assert!(began.elapsed() < START_MAX, "the emulator does not serve");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn config(&self) -> aws_config::SdkConfig {
        aws_config::defaults(aws_config::BehaviorVersion::latest())
            .region(aws_config::Region::new("us-east-1"))
            .credentials_provider(aws_sdk_sqs::config::Credentials::new(
                "test", "test", None, None, "test",
            ))
            .endpoint_url(&self.address)
            .load()
            .await
    }

    async fn make_resources(&self) {
        let config = self.config().await;
        make_table(&aws_sdk_dynamodb::Client::new(&config)).await;
        let s3 = aws_sdk_s3::config::Builder::from(&config).force_path_style(true);
        let s3 = aws_sdk_s3::Client::from_conf(s3.build());
        s3.create_bucket().bucket(BUCKET).send().await.unwrap();
        let sqs = aws_sdk_sqs::Client::new(&config);
        for queue in [
            "validate",
            "finalize",
            "dispatch",
            "assemble",
            "model-m-fast",
            "model-m-bulk",
        ] {
            sqs.create_queue()
                .queue_name(format!("test-{queue}"))
                .attributes(
                    aws_sdk_sqs::types::QueueAttributeName::VisibilityTimeout,
                    VISIBILITY_S.to_string(),
                )
                .send()
                .await
                .unwrap();
        }
    }

    fn resources(&self) -> Resources {
        Resources {
            table: TABLE.to_owned(),
            bucket: BUCKET.to_owned(),
            queue_url_prefix: format!("{}/000000000000/test-", self.address),
        }
    }

    /// Returns the environment of a function of this deployment.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        environment(&self.address, &self.resources())
    }

    /// Returns a client of the queues.
    pub(crate) async fn sqs(&self) -> aws_sdk_sqs::Client {
        aws_sdk_sqs::Client::new(&self.config().await)
    }

    /// Returns the address of a queue.
    pub(crate) fn queue_url(&self, queue: &str) -> String {
        format!("{}{queue}", self.resources().queue_url_prefix)
    }

    /// Returns the records, as functions see them.
    pub(crate) async fn store(&self) -> Store {
        let aws = Aws::over(&self.resources(), &self.config().await);
        Store::new(aws.records, Timing::AWS)
    }
}

/// Returns the environment of a function whose AWS is at `address`, where nothing need listen.
pub(crate) fn environment(address: &str, resources: &Resources) -> Vec<(String, String)> {
    let catalog = r#"[{"id": "m", "source": {"path": "m.gguf"}, "endpoints": ["/v1/chat/completions"],
        "price": {"input_per_million": 1.0, "output_per_million": 2.0}}]"#;
    [
        ("AWS_ENDPOINT_URL", address),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("NIGHTSHIFT_DEPLOYMENT", "test"),
        ("NIGHTSHIFT_TABLE", &resources.table),
        ("NIGHTSHIFT_BUCKET", &resources.bucket),
        ("NIGHTSHIFT_QUEUE_URL_PREFIX", &resources.queue_url_prefix),
        ("NIGHTSHIFT_CATALOG", catalog),
        (
            "NIGHTSHIFT_PROFILES",
            r#"{"cpu": {"models": ["m"], "workers_min": 1, "workers_max": 2}}"#,
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Returns resources that are nowhere.
pub(crate) fn no_resources() -> Resources {
    Resources {
        table: TABLE.to_owned(),
        bucket: BUCKET.to_owned(),
        queue_url_prefix: "http://127.0.0.1:9/000000000000/test-".to_owned(),
    }
}

async fn make_table(dynamodb: &aws_sdk_dynamodb::Client) {
    let attribute = |name: &str, kind: ScalarAttributeType| {
        AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(kind)
            .build()
            .unwrap()
    };
    let key = |name: &str, kind: KeyType| {
        KeySchemaElement::builder()
            .attribute_name(name)
            .key_type(kind)
            .build()
            .unwrap()
    };
    let keys_only = Projection::builder()
        .projection_type(ProjectionType::KeysOnly)
        .build();
    let work = GlobalSecondaryIndex::builder()
        .index_name("work")
        .key_schema(key("wk", KeyType::Hash))
        .key_schema(key("due", KeyType::Range))
        .projection(keys_only)
        .build()
        .unwrap();
    dynamodb
        .create_table()
        .table_name(TABLE)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute("pk", ScalarAttributeType::S))
        .attribute_definitions(attribute("sk", ScalarAttributeType::S))
        .attribute_definitions(attribute("wk", ScalarAttributeType::S))
        .attribute_definitions(attribute("due", ScalarAttributeType::N))
        .key_schema(key("pk", KeyType::Hash))
        .key_schema(key("sk", KeyType::Range))
        .global_secondary_indexes(work)
        .send()
        .await
        .unwrap();
}
