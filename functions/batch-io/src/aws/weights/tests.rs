//! Downloads from a small S3 over real HTTP, whose connections break when a test wants that.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Objects by their path, `/bucket/key`.
type Objects = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default)]
struct FakeS3 {
    objects: Mutex<Objects>,
    /// Ranges that end after half of their bytes.
    breaks: AtomicU32,
    gets: AtomicU32,
}

impl FakeS3 {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((socket, _)) = listener.accept().await {
            let fake = Arc::clone(&self);
            tokio::spawn(async move { fake.answer(socket).await });
        }
    }

    /// Answers one request, and closes.
    async fn answer(&self, mut socket: TcpStream) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).ok()?;
        let (method, rest) = head.split_once(' ')?;
        let path = rest.split(' ').next()?.to_owned();
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let answer = if query.contains("list-type=2") {
            self.list(path)
        } else {
            self.object(method, path, &head)
        };
        socket.write_all(&answer).await.ok()?;
        socket.shutdown().await.ok()
    }

    fn list(&self, bucket: &str) -> Vec<u8> {
        let objects = self.objects.lock().unwrap();
        let bucket = format!("{}/", bucket.trim_end_matches('/'));
        let keys = objects.keys().filter_map(|path| path.strip_prefix(&bucket));
        let contents: String = keys
            .map(|key| format!("<Contents><Key>{key}</Key></Contents>"))
            .collect();
        let xml = format!(
            "<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        );
        respond("200 OK", "", xml.len(), xml.as_bytes())
    }

    fn object(&self, method: &str, path: &str, head: &str) -> Vec<u8> {
        let objects = self.objects.lock().unwrap();
        let Some(bytes) = objects.get(path) else {
            return respond("404 Not Found", "", 0, b"");
        };
        if method == "HEAD" {
            return respond("200 OK", "ETag: \"tag\"\r\n", bytes.len(), b"");
        }
        self.gets.fetch_add(1, Ordering::Relaxed);
        let lines = head.lines().map(str::to_ascii_lowercase);
        let range = lines
            .filter_map(|line| Some(line.strip_prefix("range: bytes=")?.to_owned()))
            .find_map(|range| {
                let (first, last) = range.split_once('-')?;
                Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()? + 1)
            });
        let part = &bytes[range.expect("a download asks for ranges")];
        let breaks = self.breaks.load(Ordering::Relaxed) > 0;
        let sent = if breaks {
            self.breaks.fetch_sub(1, Ordering::Relaxed);
            &part[..part.len() / 2]
        } else {
            part
        };
        respond("206 Partial Content", "ETag: \"tag\"\r\n", part.len(), sent)
    }
}

fn respond(status: &str, headers: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// A store of objects, a client for it, and a folder.
struct Bench {
    fake: Arc<FakeS3>,
    weights: Weights,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn new(objects: &[(&str, Vec<u8>)]) -> Self {
        let owned = |(path, bytes): &(&str, Vec<u8>)| ((*path).to_owned(), bytes.clone());
        let fake = Arc::new(FakeS3 {
            objects: Mutex::new(objects.iter().map(owned).collect()),
            ..FakeS3::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(Arc::clone(&fake).serve(listener));
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .endpoint_url(endpoint)
            .force_path_style(true)
            .build();
        Self {
            fake,
            weights: Weights {
                client: Client::from_conf(config),
            },
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("s3/model")
    }

    async fn fetch(&self, uri: &str) -> Result<u64, IoKind> {
        let uri = uri.parse().unwrap();
        let fetched = self.weights.fetch(&uri, &self.target(), &|_, _| {}).await;
        fetched.map_err(|error| error.kind)
    }
}

/// Bytes that differ from place to place.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn file_of_many_ranges_is_put_together_when_a_range_breaks_off() {
    let sent = content(2 * RANGE_BYTES as usize + 7);
    let bench = Bench::new(&[("/models/a/m.gguf", sent.clone())]).await;
    bench.fake.breaks.store(2, Ordering::Relaxed);
    let told = Mutex::new(Vec::new());
    let uri = "s3://models/a/m.gguf".parse().unwrap();
    let tell = |done, total| told.lock().unwrap().push((done, total));
    let total = sent.len() as u64;
    let fetched = bench.weights.fetch(&uri, &bench.target(), &tell).await;
    assert_eq!(fetched.unwrap(), total);
    assert!(
        std::fs::read(bench.target()).unwrap() == sent,
        "other bytes"
    );
    assert_eq!(bench.fake.gets.load(Ordering::Relaxed), 3 + 2);
    assert_eq!(told.lock().unwrap().last(), Some(&(total, total)));
}

#[tokio::test]
async fn folder_has_the_objects_that_lie_right_below_its_prefix() {
    let bench = Bench::new(&[
        ("/models/llama/", Vec::new()),
        ("/models/llama/config.json", b"{}".to_vec()),
        ("/models/llama/empty.json", Vec::new()),
    ])
    .await;
    assert_eq!(bench.fetch("s3://models/llama/").await, Ok(2));
    let names = std::fs::read_dir(bench.target()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "empty.json"]);
}

#[tokio::test]
async fn file_that_is_here_is_not_asked_for_again() {
    let bench = Bench::new(&[("/models/m.gguf", content(10))]).await;
    assert_eq!(bench.fetch("s3://models/m.gguf").await, Ok(10));
    bench.fake.objects.lock().unwrap().clear();
    assert_eq!(bench.fetch("s3://models/m.gguf").await, Ok(0));
}

#[tokio::test]
async fn one_of_two_processes_downloads() {
    let bench = Bench::new(&[("/models/m.gguf", content(1000))]).await;
    let (one, two) = tokio::join!(
        bench.fetch("s3://models/m.gguf"),
        bench.fetch("s3://models/m.gguf")
    );
    let mut fetched = [one.unwrap(), two.unwrap()];
    fetched.sort_unstable();
    assert_eq!(fetched, [0, 1000]);
    assert_eq!(bench.fake.gets.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn nothing_is_left_in_place_when_an_object_is_missing_or_breaks() {
    let bench = Bench::new(&[("/models/m.gguf", content(10))]).await;
    assert_eq!(
        bench.fetch("s3://models/n.gguf").await,
        Err(IoKind::NotFound)
    );
    assert_eq!(
        bench.fetch("s3://empty/llama/").await,
        Err(IoKind::NotFound)
    );
    bench.fake.breaks.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(bench.fetch("s3://models/m.gguf").await, Err(IoKind::Busy));
    assert!(!bench.target().exists());
    bench.fake.breaks.store(0, Ordering::Relaxed);
    assert_eq!(
        bench.fetch("s3://models/m.gguf").await,
        Ok(10),
        "and the next try works"
    );
}

#[test]
fn addresses_are_read_and_written() {
    for (text, name, is_folder) in [
        ("s3://b/k.gguf", "k.gguf", false),
        ("s3://b/a/k.gguf", "k.gguf", false),
        ("s3://b/a/llama/", "llama", true),
    ] {
        let uri: S3Uri = text.parse().unwrap();
        assert_eq!((uri.name(), uri.is_folder()), (name, is_folder));
        assert_eq!(uri.to_string(), text);
    }
}

#[test]
fn other_texts_are_no_addresses() {
    for text in [
        "",
        "s3://",
        "s3://b",
        "s3://b/",
        "s3:///k",
        "b/k",
        "https://b/k",
        "s3://b/a/..",
        "s3://b/.",
    ] {
        assert!(text.parse::<S3Uri>().is_err(), "{text}");
    }
}
