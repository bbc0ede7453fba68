//! The server's router over a real port, with records and blobs of one machine.

use std::net::SocketAddr;

use async_trait::async_trait;
use batch_core::catalog::Catalog;
use batch_core::external::ImportLocations;
use batch_core::id::{KeyId, TenantId};
use batch_core::settings::Settings;
use batch_core::time::UnixMs;
use batch_core::wire::{Credentials, Principal, WireError};
use batch_io::embedded::Embedded;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// Takes every key for the same.
struct Anyone;

#[async_trait]
impl api::Authorize for Anyone {
    async fn authorize(&self, _: Credentials<'_>, now: UnixMs) -> Result<Principal, WireError> {
        Ok(Principal {
            tenant: TenantId::default_tenant(),
            key: KeyId::new(now, [1; 16]),
        })
    }
}

async fn start(dir: &std::path::Path, slots: u16) -> SocketAddr {
    let platform = Embedded::open(dir).unwrap().platform();
    let settings = Settings::EMBEDDED;
    let context = api::Context {
        store: Store::new(Arc::clone(&platform.records), settings.timing),
        platform,
        catalog: Arc::new(Catalog::default()),
        settings,
        imports: ImportLocations::default(),
        auth: Arc::new(Anyone),
    };
    let router = routes(context, UploadSlots::new(slots), Background::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

async fn begin(to: SocketAddr, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.to_ascii_lowercase()
}

async fn ask(to: SocketAddr, line: &str) -> String {
    let head =
        format!("{line} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    answer(begin(to, &head).await).await
}

#[tokio::test]
async fn an_upload_too_many_is_told_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let address = start(dir.path(), 1).await;
    let form = "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n\
        --edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nbytes\r\n--edge--\r\n";
    // The server says "100 Continue" when its handler asks for the body: the upload is in its slot then.
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: test\r\nconnection: close\r\nexpect: 100-continue\r\n\
        content-type: multipart/form-data; boundary=edge\r\ncontent-length: {}\r\n\r\n",
        form.len()
    );
    let mut first = begin(address, &head).await;
    let mut proceed = [0; 25];
    first.read_exact(&mut proceed).await.unwrap();
    assert_eq!(&proceed, b"HTTP/1.1 100 Continue\r\n\r\n");
    for path in [
        "files",
        "uploads/upload_1/parts",
        "uploads/upload_1/complete",
    ] {
        let refused = ask(address, &format!("POST /v1/{path}")).await;
        assert!(refused.starts_with("http/1.1 503"), "{path}: {refused}");
        assert!(refused.contains("\r\nretry-after: 5\r\n"), "{refused}");
        assert!(refused.contains("the server is overloaded"), "{refused}");
    }
    for line in ["GET /healthz", "GET /v1/files", "GET /v1/batches"] {
        let served = ask(address, line).await;
        assert!(served.starts_with("http/1.1 200"), "{line}: {served}");
    }
    first.write_all(form.as_bytes()).await.unwrap();
    let stored = answer(first).await;
    assert!(stored.starts_with("http/1.1 200"), "{stored}");
    let again = ask(address, "POST /v1/files").await;
    assert!(
        again.starts_with("http/1.1 415"),
        "the slot is free: {again}"
    );
}

#[test]
fn the_number_of_uploads_at_once_is_read() {
    let read = |set: &str| uploads_at_once(Some(set.to_owned()));
    assert_eq!(uploads_at_once(None).unwrap(), UPLOADS_AT_ONCE_DEFAULT);
    assert_eq!(read("").unwrap(), UPLOADS_AT_ONCE_DEFAULT);
    assert_eq!(read("32").unwrap(), 32);
    for wrong in ["0", "-1", "many", "65536"] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(UPLOADS_AT_ONCE), "{error}");
        assert!(error.contains(wrong), "{error}");
    }
}
