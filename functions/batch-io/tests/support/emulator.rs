//! MiniStack as a child process: one for all tests of a process, ended with the last of them.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::Mutex;

use super::proxy::fetch;

/// Path of the `ministack` executable.
const PROGRAM: &str = "NIGHTSHIFT_TEST_MINISTACK";

/// Set to 1 where a missing emulator is a failure.
const REQUIRED: &str = "REQUIRE_EMULATOR";

/// Until it answers, on a busy machine.
const START: Duration = Duration::from_secs(60);

static SHARED: Mutex<Weak<Emulator>> = Mutex::const_new(Weak::new());

/// A running emulator.
pub(crate) struct Emulator {
    pub(crate) port: u16,
    child: Child,
    _scratch: TempDir,
}

impl Emulator {
    /// Returns the emulator of this process, started if it is not running; none, said loudly, without the
    /// program.
    pub(crate) async fn shared() -> Option<Arc<Self>> {
        let Some(program) = std::env::var_os(PROGRAM) else {
            let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
            assert!(!required, "{PROGRAM} is not set, and {REQUIRED}=1");
            println!("SKIPPED: {PROGRAM} does not name the ministack executable");
            return None;
        };
        let mut shared = SHARED.lock().await;
        if let Some(running) = shared.upgrade() {
            return Some(running);
        }
        let started = Arc::new(Self::start(Command::new(program)).await);
        *shared = Arc::downgrade(&started);
        Some(started)
    }

    async fn start(mut command: Command) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let port = free_port();
        let log = File::create(scratch.path().join("log")).unwrap();
        let child = command
            .env("BIND_HOST", "127.0.0.1")
            .env("GATEWAY_PORT", port.to_string())
            .env("MINISTACK_HOST", "127.0.0.1")
            .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"))
            .env("LAMBDA_EXECUTOR", "local")
            .env("TMPDIR", scratch.path())
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the emulator's program runs");
        let emulator = Self {
            port,
            child,
            _scratch: scratch,
        };
        let begun = Instant::now();
        let health = format!("http://127.0.0.1:{port}/_ministack/health");
        while fetch(&health)
            .await
            .is_none_or(|(status, _, _)| status != 200)
        {
            assert!(begun.elapsed() < START, "the emulator does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        emulator
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.child.kill().expect("the emulator is ours to end");
        self.child.wait().expect("it has ended");
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}
