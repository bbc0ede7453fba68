//! Downloads from a store that hands out addresses.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use batch_core::blob_key::BlobKey;
use batch_core::external::{ExternalObject, PinnedObject};
use batch_core::settings::Settings;
use batch_io::IoError;
use batch_io::port::{BlobMeta, BlobRead, BlobReader, Blobs, MultipartId, PartTag};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower::ServiceExt;

use crate::client::{BOUNDARY, file, form_body, text};
use crate::server::context;

/// Blobs of one machine with the addresses of another.
struct Addressed(Arc<dyn Blobs>);

#[async_trait]
impl Blobs for Addressed {
    async fn put(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.0.put(key, body).await
    }

    async fn put_if_absent(&self, key: &BlobKey, body: Bytes) -> Result<BlobMeta, IoError> {
        self.0.put_if_absent(key, body).await
    }

    async fn put_stream(&self, key: &BlobKey, body: BlobReader) -> Result<BlobMeta, IoError> {
        self.0.put_stream(key, body).await
    }

    async fn head(&self, key: &BlobKey) -> Result<BlobMeta, IoError> {
        self.0.head(key).await
    }

    async fn get(&self, key: &BlobKey, start: u64, end: Option<u64>) -> Result<BlobRead, IoError> {
        self.0.get(key, start, end).await
    }

    async fn multipart_begin(&self, key: &BlobKey) -> Result<MultipartId, IoError> {
        self.0.multipart_begin(key).await
    }

    async fn multipart_put(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        body: Bytes,
    ) -> Result<PartTag, IoError> {
        self.0.multipart_put(key, id, number, body).await
    }

    async fn multipart_copy(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &BlobKey,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError> {
        self.0
            .multipart_copy(key, id, number, source, start, end)
            .await
    }

    async fn head_external(&self, object: &ExternalObject) -> Result<BlobMeta, IoError> {
        self.0.head_external(object).await
    }

    async fn multipart_copy_external(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        number: u32,
        source: &PinnedObject,
        start: u64,
        end: u64,
    ) -> Result<PartTag, IoError> {
        self.0
            .multipart_copy_external(key, id, number, source, start, end)
            .await
    }

    async fn multipart_finish(
        &self,
        key: &BlobKey,
        id: &MultipartId,
        parts: &[PartTag],
    ) -> Result<BlobMeta, IoError> {
        self.0.multipart_finish(key, id, parts).await
    }

    async fn multipart_abort(&self, key: &BlobKey, id: &MultipartId) -> Result<(), IoError> {
        self.0.multipart_abort(key, id).await
    }

    async fn presigned_get(
        &self,
        key: &BlobKey,
        filename: &str,
        life_s: u32,
    ) -> Result<Option<String>, IoError> {
        self.0.presigned_get(key, filename, life_s).await?;
        Ok(Some(format!(
            "https://store.example/{key}?name={filename}&life={life_s}"
        )))
    }

    async fn delete(&self, key: &BlobKey) -> Result<(), IoError> {
        self.0.delete(key).await
    }

    async fn delete_prefix(&self, prefix: &str) -> Result<u64, IoError> {
        self.0.delete_prefix(prefix).await
    }
}

/// Makes a router over a store with addresses, and the path of a file of four bytes.
async fn router_with_file(dir: &std::path::Path) -> (axum::Router, String) {
    let (context, _) = context(dir, Settings::EMBEDDED);
    let mut context = (*context).clone();
    context.platform.blobs = Arc::new(Addressed(context.platform.blobs));
    let router = api::router(Arc::new(context));
    let form = form_body(&[text("purpose", "user_data"), file("file", "a.txt", b"text")]);
    let upload = Request::post("/v1/files")
        .header("authorization", "Bearer sk-tenant")
        .header(
            "content-type",
            format!("multipart/form-data; boundary={BOUNDARY}"),
        )
        .body(Body::from(form))
        .unwrap();
    let answer = router.clone().oneshot(upload).await.unwrap();
    let body = axum::body::to_bytes(answer.into_body(), 10_000)
        .await
        .unwrap();
    let file: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let id = file["id"].as_str().unwrap().to_owned();
    (router, format!("/v1/files/{id}/content"))
}

async fn ask(
    router: &axum::Router,
    method: &str,
    path: &str,
    header: (&str, &str),
) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", "Bearer sk-tenant")
        .header(header.0, header.1)
        .body(Body::empty())
        .unwrap();
    router.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_download_is_sent_to_the_address_of_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (router, path) = router_with_file(dir.path()).await;
    for header in [
        ("accept", "*/*"),
        ("range", "bytes=1-2"),
        ("if-none-match", "*"),
    ] {
        let answer = ask(&router, "GET", &path, header).await;
        assert_eq!(answer.status(), StatusCode::FOUND, "{header:?}");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        let address = answer.headers()["location"].to_str().unwrap();
        assert!(
            address.starts_with("https://store.example/files/tenant/file-")
                && address.ends_with("?name=a.txt&life=300"),
            "{address}"
        );
    }
}

#[tokio::test]
async fn a_look_at_the_headers_is_answered_here() {
    let dir = tempfile::tempdir().unwrap();
    let (router, path) = router_with_file(dir.path()).await;
    let answer = ask(&router, "HEAD", &path, ("accept", "*/*")).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-length"], "4");
    let tag = answer.headers()["etag"].to_str().unwrap().to_owned();
    let same = ask(&router, "HEAD", &path, ("if-none-match", &tag)).await;
    assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
}
