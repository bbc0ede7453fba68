//! What the requests carry, as a server sees them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_s3::config::{Credentials, SharedCredentialsProvider};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, ETAG};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::aws::connection;

const MIB: usize = 1024 * 1024;

/// Headers of the requests by their lines: `PUT /bucket/key?query`.
type Seen = Arc<Mutex<BTreeMap<String, BTreeMap<String, String>>>>;

/// Answers like S3 does, as far as the adapter reads, and remembers the headers.
async fn handle(
    seen: Seen,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (request, body) = request.into_parts();
    body.collect().await.unwrap();
    let headers = request.headers.iter();
    let headers =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let line = format!("{} {}", request.method, request.uri);
    seen.lock().unwrap().insert(line, headers.collect());
    let answer = Response::builder().header(ETAG, "\"tag\"");
    let query = request.uri.query().unwrap_or_default();
    let xml = match request.method {
        Method::HEAD => {
            let head = answer.header(CONTENT_LENGTH, 20 * MIB);
            return Ok(head.body(Full::default()).unwrap());
        }
        Method::POST if query.contains("uploads") => {
            "<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"
        }
        Method::POST => {
            "<CompleteMultipartUploadResult><ETag>\"tag\"</ETag></CompleteMultipartUploadResult>"
        }
        Method::PUT if request.headers.contains_key("x-amz-copy-source") => {
            "<CopyPartResult><ETag>\"tag\"</ETag></CopyPartResult>"
        }
        _ => "",
    };
    Ok(answer.body(Full::from(xml)).unwrap())
}

async fn serve(seen: Seen) -> S3Blobs {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request| handle(Arc::clone(&seen), request));
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let credentials = Credentials::new("test", "test", None, None, "tests");
    let config: SdkConfig = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(format!("http://{address}"))
        .load()
        .await;
    S3Blobs::new(connection::s3(&config), "bucket")
}

#[tokio::test]
async fn no_part_carries_a_checksum_that_a_copied_one_lacks() {
    let seen = Seen::default();
    let blobs = serve(Arc::clone(&seen)).await;
    let id = blobs.begin_at("whole").await.unwrap();
    let body = Bytes::from(vec![7; 6 * MIB]);
    let first = blobs.put_part_at("whole", &id, 1, body).await.unwrap();
    let source = Source {
        blobs: &blobs,
        path: "source",
        etag: None,
    };
    let range = 0..10 * MIB as u64;
    let second = blobs.copy_part_at("whole", &id, 2, source, range).await;
    let parts = [first, second.unwrap()];
    blobs.finish_at("whole", &id, &parts).await.unwrap();
    blobs
        .put_at("small", Bytes::from_static(b"x"))
        .await
        .unwrap();

    let seen = seen.lock().unwrap();
    let of_whole = seen.iter().filter(|(line, _)| line.contains("/whole"));
    let of_whole: Vec<_> = of_whole.collect();
    assert_eq!(of_whole.len(), 4, "{of_whole:?}");
    for (line, headers) in of_whole {
        let summed = headers
            .keys()
            .find(|name| name.contains("checksum") || *name == "x-amz-trailer");
        assert_eq!(summed, None, "{line}");
    }
    let with = |text: &str| {
        let found = seen.iter().find(|(line, _)| line.contains(text));
        found.expect("such a request").1
    };
    let signed = &with("partNumber=1")["x-amz-content-sha256"];
    assert_eq!(
        signed.len(),
        64,
        "the signature has the part's digest: {signed}"
    );
    assert!(with("PUT /bucket/small").contains_key("x-amz-checksum-crc32"));
}
