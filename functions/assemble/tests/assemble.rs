//! Files that are put together of parts and of objects outside, with crashes at every call.

#[path = "../../finalize/tests/support/faults.rs"]
#[expect(dead_code, reason = "other tests use what this one does not")]
mod faults;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use assemble::{Context, handle};
use batch_core::blob_key::BlobKey;
use batch_core::external::PinnedObject;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{FileId, PartId, TenantId, UploadId};
use batch_core::message::{AssembleJob, SCHEMA};
use batch_core::settings::Timing;
use batch_core::time::UnixMs;
use batch_core::upload::{Assembly, AssemblySource, Piece, Upload, UploadStatus};
use batch_io::Platform;
use batch_io::embedded::{Embedded, Weather};
use batch_io::store::Store;
use bytes::Bytes;
use faults::{Fuse, When};
use futures::TryStreamExt;
use tempfile::TempDir;

const START: i64 = 1_790_000_000_000;
const MIB: usize = 1024 * 1024;

/// MD5 of the sample of so many bytes.
const MD5_OF_6_MIB_AND_9: &str = "9eeed7fbab49e58adf8da57481f693fd";

/// Calls of a run that is not disturbed are fewer.
const CALLS_MAX: i64 = 60;

struct World {
    platform: Platform,
    store: Store,
    clock: Arc<AtomicI64>,
    dir: TempDir,
}

/// A file that waits for its job.
struct Waiting {
    job: AssembleJob,
    assembly: Assembly,
    whole: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let clock = Arc::new(AtomicI64::new(START));
        let hand = Arc::clone(&clock);
        let now = Arc::new(move || UnixMs(hand.load(Ordering::SeqCst)));
        let platform = Embedded::open_under(dir.path(), Weather::default(), now)
            .expect("a fresh data folder")
            .platform();
        let store = Store::new(Arc::clone(&platform.records), Timing::EMBEDDED);
        Self {
            platform,
            store,
            clock,
            dir,
        }
    }

    fn now(&self) -> UnixMs {
        UnixMs(self.clock.load(Ordering::SeqCst))
    }

    fn context(&self, platform: Platform) -> Context {
        let store = Store::new(Arc::clone(&platform.records), Timing::EMBEDDED);
        Context { platform, store }
    }

    async fn run(&self, job: &AssembleJob) {
        let ctx = self.context(self.platform.clone());
        handle(&ctx, job.clone()).await.expect("assemble");
    }

    /// Makes the records of a file to be.
    async fn wait(&self, source: AssemblySource, whole: Vec<u8>, md5: Option<&str>) -> Waiting {
        let (tenant, now) = (TenantId::default_tenant(), self.now());
        let file = FileId::new(now, (self.platform.random)());
        let mut upload = upload(&tenant, now, &self.platform);
        if let AssemblySource::Parts(_) = &source {
            self.store.create_upload(&upload).await.expect("an upload");
        } else {
            upload.status = UploadStatus::Completed(file);
        }
        let record = file_record(&tenant, file, now, whole.len() as u64);
        let assembly = Assembly {
            upload,
            file,
            source,
            md5: md5.map(str::to_owned),
        };
        match &assembly.source {
            AssemblySource::Parts(pieces) => {
                let mut rest = whole.as_slice();
                for piece in pieces {
                    let (bytes, after) =
                        rest.split_at(usize::try_from(piece.bytes()).expect("small"));
                    self.put_part(&assembly, piece, bytes).await;
                    rest = after;
                }
                assert!(
                    self.store
                        .begin_assembly(&assembly, &record, now)
                        .await
                        .expect("begin")
                );
            }
            AssemblySource::Object(_) => {
                self.store
                    .begin_import(&assembly, &record, now)
                    .await
                    .expect("begin");
            }
        }
        let job = AssembleJob {
            schema: SCHEMA,
            tenant,
            upload: assembly.upload.id,
            file,
        };
        Waiting {
            job,
            assembly,
            whole,
        }
    }

    /// Stores a part with as many bytes around it as its piece leaves out.
    async fn put_part(&self, assembly: &Assembly, piece: &Piece, bytes: &[u8]) {
        let around = usize::try_from(piece.start).expect("small");
        let body = [&vec![b'<'; around][..], bytes, &vec![b'>'; around]].concat();
        let blob = part_blob(assembly, piece.part);
        self.platform
            .blobs
            .put(&blob, body.into())
            .await
            .expect("put a part");
    }

    /// Makes a file of parts of these sizes, each inside an envelope of its own length.
    async fn wait_for_parts(&self, sizes: &[usize], md5: Option<&str>) -> Waiting {
        let whole = sample(sizes.iter().sum());
        let pieces = sizes.iter().enumerate().map(|(index, bytes)| Piece {
            part: PartId::new(self.now(), (self.platform.random)()),
            start: index as u64 * 7,
            end: index as u64 * 7 + *bytes as u64,
        });
        self.wait(AssemblySource::Parts(pieces.collect()), whole, md5)
            .await
    }

    async fn status(&self, waiting: &Waiting) -> Option<FileStatus> {
        let AssembleJob { tenant, file, .. } = &waiting.job;
        let file = self
            .store
            .load_file(tenant, *file, self.now())
            .await
            .expect("load the file");
        file.map(|file| file.status)
    }

    async fn content(&self, waiting: &Waiting) -> Option<Vec<u8>> {
        let blob = BlobKey::File {
            tenant: waiting.job.tenant.clone(),
            file: waiting.job.file,
        };
        let read = self.platform.blobs.get(&blob, 0, None).await.ok()?;
        let chunks: Vec<Bytes> = read.body.try_collect().await.expect("read the file");
        Some(chunks.concat())
    }

    /// Asserts that the file is whole, and that nothing is left of its making.
    async fn assert_processed(&self, waiting: &Waiting, why: &str) {
        assert_eq!(
            self.status(waiting).await,
            Some(FileStatus::Processed),
            "{why}"
        );
        assert!(
            self.content(waiting).await.as_ref() == Some(&waiting.whole),
            "{why}"
        );
        let stored = self
            .store
            .load_assembly(&waiting.job.tenant, waiting.job.upload)
            .await;
        assert_eq!(stored.expect("load"), None, "{why}");
    }
}

fn upload(tenant: &TenantId, now: UnixMs, platform: &Platform) -> Upload {
    Upload {
        id: UploadId::new(now, (platform.random)()),
        tenant: tenant.clone(),
        bytes: 1,
        created_at: now,
        expires_at: now.plus_ms(3_600_000),
        filename: "in.jsonl".to_owned(),
        mime_type: "application/jsonl".to_owned(),
        purpose: Purpose::Batch,
        expires_after: None,
        status: UploadStatus::Pending,
        schema: SCHEMA,
    }
}

fn file_record(tenant: &TenantId, id: FileId, now: UnixMs, bytes: u64) -> File {
    File {
        id,
        tenant: tenant.clone(),
        bytes,
        created_at: now,
        expires_at: None,
        filename: "in.jsonl".to_owned(),
        purpose: Purpose::Batch,
        status: FileStatus::Uploaded,
        blob: BlobKey::File {
            tenant: tenant.clone(),
            file: id,
        },
        schema: SCHEMA,
    }
}

fn part_blob(assembly: &Assembly, part: PartId) -> BlobKey {
    BlobKey::Part {
        tenant: assembly.upload.tenant.clone(),
        upload: assembly.upload.id,
        part,
    }
}

fn sample(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index / 997 % 251) as u8).collect()
}

#[tokio::test]
async fn parts_in_their_envelopes_become_the_file() {
    let world = World::new();
    let sizes = [3 * MIB, 3 * MIB, 0, 6 * MIB, 1, 11 * MIB, 5];
    let waiting = world.wait_for_parts(&sizes, None).await;
    world.run(&waiting.job).await;
    world.assert_processed(&waiting, "at once").await;
    let blob = part_blob(&waiting.assembly, pieces(&waiting)[0].part);
    assert!(
        world.platform.blobs.head(&blob).await.is_err(),
        "the parts are gone"
    );
    world.run(&waiting.job).await;
    world.assert_processed(&waiting, "a second time").await;
}

fn pieces(waiting: &Waiting) -> &[Piece] {
    match &waiting.assembly.source {
        AssemblySource::Parts(pieces) => pieces,
        AssemblySource::Object(object) => panic!("{object:?} is no part"),
    }
}

#[tokio::test]
async fn the_file_is_processed_when_a_run_fails_at_any_call() {
    for when in [When::Before, When::After] {
        for k in 0..CALLS_MAX {
            let world = World::new();
            let waiting = world
                .wait_for_parts(&[6 * MIB, 9], Some(MD5_OF_6_MIB_AND_9))
                .await;
            let fuse = Fuse::at(k, when);
            let ctx = world.context(fuse.wrap(&world.platform));
            let first = handle(&ctx, waiting.job.clone()).await;
            if first.is_ok() && i64::try_from(fuse.calls()).expect("few") <= k {
                assert!(k > 5, "every call was tried");
                break;
            }
            world.run(&waiting.job).await;
            world
                .assert_processed(&waiting, &format!("{when:?} {k}"))
                .await;
            assert!(k + 1 < CALLS_MAX, "more calls than expected");
        }
    }
}

#[tokio::test]
async fn two_runs_at_once_make_one_file() {
    let world = World::new();
    let waiting = world.wait_for_parts(&[6 * MIB, 2 * MIB], None).await;
    tokio::join!(world.run(&waiting.job), world.run(&waiting.job));
    world.assert_processed(&waiting, "both").await;
}

#[tokio::test]
async fn the_file_fails_when_its_digest_is_another() {
    let world = World::new();
    let waiting = world.wait_for_parts(&[10], Some(&"0".repeat(32))).await;
    world.run(&waiting.job).await;
    let Some(FileStatus::Error(why)) = world.status(&waiting).await else {
        panic!("the file has an error")
    };
    assert!(why.starts_with("The MD5 of the parts is "), "{why}");
    assert_eq!(world.content(&waiting).await, None);
}

#[tokio::test]
async fn the_file_fails_when_a_part_is_gone() {
    let world = World::new();
    let waiting = world.wait_for_parts(&[6 * MIB, 9], None).await;
    let gone = pieces(&waiting)[1].part;
    let blob = part_blob(&waiting.assembly, gone);
    world.platform.blobs.delete(&blob).await.expect("delete");
    world.run(&waiting.job).await;
    let expected = FileStatus::Error(format!("The part '{gone}' is gone."));
    assert_eq!(world.status(&waiting).await, Some(expected));
}

#[tokio::test]
async fn nothing_is_left_when_the_file_was_deleted_meanwhile() {
    let world = World::new();
    let waiting = world.wait_for_parts(&[9], None).await;
    let AssembleJob { tenant, file, .. } = &waiting.job;
    assert!(
        world
            .store
            .delete_file(tenant, *file, world.now())
            .await
            .expect("delete")
    );
    world
        .store
        .forget_file(tenant, *file)
        .await
        .expect("forget");
    world.run(&waiting.job).await;
    assert_eq!(world.content(&waiting).await, None);
}

/// Writes an object of others, and pins it.
async fn object(world: &World, body: &[u8]) -> PinnedObject {
    let folder = world.dir.path().join("buckets/exports");
    std::fs::create_dir_all(&folder).expect("make the bucket");
    write_object(world.dir.path(), body);
    let object = "s3://exports/in.jsonl".parse().expect("an object");
    let meta = world
        .platform
        .blobs
        .head_external(&object)
        .await
        .expect("look");
    PinnedObject {
        object,
        etag: meta.etag,
        bytes: meta.bytes,
    }
}

fn write_object(data: &Path, body: &[u8]) {
    std::fs::write(data.join("buckets/exports/in.jsonl"), body).expect("write the object");
}

#[tokio::test]
async fn an_object_becomes_a_file_and_keeps_its_bytes() {
    let world = World::new();
    let whole = sample(65 * MIB);
    let pinned = object(&world, &whole).await;
    let waiting = world
        .wait(AssemblySource::Object(pinned), whole.clone(), None)
        .await;
    world.run(&waiting.job).await;
    world.assert_processed(&waiting, "imported").await;
    assert!(world.dir.path().join("buckets/exports/in.jsonl").exists());
}

#[tokio::test]
async fn an_object_that_changed_or_went_fails_its_file() {
    for (change, why) in [
        (
            Some(&b"other text"[..]),
            "has changed since the batch was created",
        ),
        (None, "is gone, or this service may not read it any more"),
    ] {
        let world = World::new();
        let pinned = object(&world, b"text").await;
        let waiting = world
            .wait(AssemblySource::Object(pinned), b"text".to_vec(), None)
            .await;
        match change {
            Some(body) => write_object(world.dir.path(), body),
            None => std::fs::remove_dir_all(world.dir.path().join("buckets")).expect("remove"),
        }
        world.run(&waiting.job).await;
        let expected = FileStatus::Error(format!("The object 's3://exports/in.jsonl' {why}."));
        assert_eq!(world.status(&waiting).await, Some(expected));
    }
}

#[tokio::test]
async fn a_job_of_a_newer_version_is_refused() {
    let world = World::new();
    let waiting = world.wait_for_parts(&[9], None).await;
    let job = AssembleJob {
        schema: SCHEMA + 1,
        ..waiting.job.clone()
    };
    let refused = handle(&world.context(world.platform.clone()), job).await;
    assert_eq!(
        refused.map_err(|error| error.kind),
        Err(batch_io::IoKind::Denied)
    );
}
