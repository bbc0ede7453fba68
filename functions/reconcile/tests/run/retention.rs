//! What goes, and what stays, once its time is over.

use batch_core::batch::{FileDigest, Manifest};
use batch_core::blob_key::BlobKey;
use batch_core::file::{File, FileStatus, Purpose};
use batch_core::id::{BatchId, FileId, PartId, UploadId};
use batch_core::lifecycle::{Event, State, Terminal};
use batch_core::message::{AssembleJob, QueueName, SCHEMA};
use batch_core::shard::ShardId;
use batch_core::upload::{Assembly, AssemblySource, Piece, Upload, UploadPart, UploadStatus};
use batch_io::store::{Finish, Finished, Stage};
use bytes::Bytes;

use crate::publish::publish;
use crate::worker::{Answers, release_all, run_shard};
use crate::world::World;
use crate::{CUT, reconcile, state};

fn input_blob(world: &World, file: FileId) -> BlobKey {
    BlobKey::File {
        tenant: world.tenant.clone(),
        file,
    }
}

#[tokio::test]
async fn a_deleted_file_goes_when_no_batch_reads_it() {
    let world = World::new();
    let file = world.upload(Purpose::Batch, b"text").await;
    let kept = world.upload(Purpose::Batch, b"text").await;
    assert!(
        world
            .store
            .delete_file(&world.tenant, file, world.now())
            .await
            .expect("delete the file")
    );
    assert_eq!(reconcile(&world).await.files_removed, 1);
    assert_eq!(world.blob(&input_blob(&world, file)).await, None);
    assert!(world.blob(&input_blob(&world, kept)).await.is_some());
    assert_eq!(reconcile(&world).await.files_removed, 0);
}

#[tokio::test]
async fn a_deleted_file_stays_while_a_batch_on_it_is_validating() {
    let world = World::new();
    let batch = world.create_from(b"text").await;
    let file: FileId = world
        .batch(batch)
        .await
        .params
        .input_file_id
        .parse()
        .expect("a file id");
    assert!(
        world
            .store
            .delete_file(&world.tenant, file, world.now())
            .await
            .expect("delete the file")
    );
    assert_eq!(reconcile(&world).await.files_removed, 0);
    assert!(world.blob(&input_blob(&world, file)).await.is_some());
    world
        .store
        .apply(&world.tenant, batch, Event::WindowClosed, world.now())
        .await
        .expect("expire");
    world.advance_ms(3_600_000);
    assert_eq!(reconcile(&world).await.files_removed, 1);
    assert_eq!(world.blob(&input_blob(&world, file)).await, None);
}

/// An upload of four bytes.
fn upload(world: &World) -> Upload {
    Upload {
        id: UploadId::new(world.now(), (world.platform.random)()),
        tenant: world.tenant.clone(),
        bytes: 4,
        created_at: world.now(),
        expires_at: world.now().plus_ms(3_600_000),
        filename: "input.jsonl".to_owned(),
        mime_type: "application/jsonl".to_owned(),
        purpose: Purpose::Batch,
        expires_after: None,
        status: UploadStatus::Pending,
        schema: SCHEMA,
    }
}

#[tokio::test]
async fn the_parts_of_an_upload_go_when_its_time_is_over() {
    let world = World::new();
    let upload = upload(&world);
    let id = upload.id;
    world
        .store
        .create_upload(&upload)
        .await
        .expect("create the upload");
    let part = PartId::new(world.now(), (world.platform.random)());
    let blob = BlobKey::Part {
        tenant: world.tenant.clone(),
        upload: id,
        part,
    };
    world
        .platform
        .blobs
        .put(&blob, Bytes::from_static(b"text"))
        .await
        .expect("put the part");
    let part = UploadPart {
        id: part,
        upload: id,
        bytes: 4,
        created_at: world.now(),
        blob: blob.clone(),
    };
    assert!(
        world
            .store
            .add_part(&world.tenant, &part)
            .await
            .expect("add the part")
    );
    assert_eq!(reconcile(&world).await.uploads_removed, 0);
    world.advance_ms(3_600_000);
    assert_eq!(reconcile(&world).await.uploads_removed, 1);
    assert_eq!(world.blob(&blob).await, None);
    assert_eq!(reconcile(&world).await.uploads_removed, 0);
}

#[tokio::test]
async fn a_file_that_is_late_is_asked_for_again_and_keeps_its_parts() {
    let world = World::new();
    let upload = upload(&world);
    let store = &world.store;
    store.create_upload(&upload).await.expect("create");
    let part = PartId::new(world.now(), (world.platform.random)());
    let blob = BlobKey::Part {
        tenant: world.tenant.clone(),
        upload: upload.id,
        part,
    };
    let text = Bytes::from_static(b"text");
    world.platform.blobs.put(&blob, text).await.expect("put");
    let file = FileId::new(world.now(), (world.platform.random)());
    let record = File {
        id: file,
        tenant: world.tenant.clone(),
        bytes: 4,
        created_at: world.now(),
        expires_at: None,
        filename: upload.filename.clone(),
        purpose: Purpose::Batch,
        status: FileStatus::Uploaded,
        blob: input_blob(&world, file),
        schema: SCHEMA,
    };
    let (start, end) = (0, 4);
    let assembly = Assembly {
        upload: upload.clone(),
        file,
        source: AssemblySource::Parts(vec![Piece { part, start, end }]),
        md5: None,
    };
    let begun = store.begin_assembly(&assembly, &record, world.now()).await;
    assert!(begun.expect("begin"));
    assert_eq!(reconcile(&world).await.assemblies_resent, 0);
    world.advance_ms(3_600_000);
    assert_eq!(reconcile(&world).await.assemblies_resent, 1);
    assert_eq!(reconcile(&world).await.assemblies_resent, 0);
    let job = AssembleJob {
        schema: SCHEMA,
        tenant: world.tenant.clone(),
        upload: upload.id,
        file,
    };
    let expected = serde_json::to_string(&job).expect("a job is plain JSON");
    assert_eq!(world.drain(&QueueName::Assemble).await, [expected]);
    assert!(world.blob(&blob).await.is_some(), "the part stays");
    let status = FileStatus::Processed;
    store
        .end_assembly(&world.tenant, upload.id, file, &status, world.now())
        .await
        .expect("end");
    assert_eq!(reconcile(&world).await.uploads_removed, 1);
    assert_eq!(world.blob(&blob).await, None);
}

/// Ends a batch as the finalizer does, with an output file of its own epoch, and returns the file's blob.
async fn end(world: &World, batch: BatchId) -> BlobKey {
    end_from(world, batch, 0).await[0].clone()
}

/// Ends a batch as a finalizer that went on with the files of one `earlier` epochs before, and returns the
/// blobs of both files.
async fn end_from(world: &World, batch: BatchId, earlier: u64) -> [BlobKey; 2] {
    world
        .store
        .apply(&world.tenant, batch, Event::AllShardsDone, world.now())
        .await
        .expect("seal");
    let mut epoch = 0;
    for _ in 0..=earlier {
        let claim = world
            .store
            .claim_stage(&world.tenant, batch, Stage::Finalize, world.now());
        epoch = claim.await.expect("claim").expect("a sealed batch").epoch;
        let saved = world
            .store
            .save_place(&world.tenant, batch, epoch, world.now());
        assert!(saved.await.expect("save the place"), "the lease is held");
    }
    let (tenant, begun) = (world.tenant.clone(), epoch - earlier);
    let blobs = [
        BlobKey::Output {
            tenant: tenant.clone(),
            batch,
            epoch: begun,
        },
        BlobKey::Errors {
            tenant,
            batch,
            epoch: begun,
        },
    ];
    for blob in &blobs {
        let put = world.platform.blobs.put(blob, Bytes::from_static(b"lines"));
        put.await.expect("put the file");
    }
    let record = |blob: &BlobKey| File {
        id: FileId::new(world.now(), (world.platform.random)()),
        tenant: world.tenant.clone(),
        bytes: 5,
        created_at: world.now(),
        expires_at: Some(world.now().plus_ms(86_400_000)),
        filename: "output.jsonl".to_owned(),
        purpose: Purpose::BatchOutput,
        status: FileStatus::Processed,
        blob: blob.clone(),
        schema: SCHEMA,
    };
    let digest = FileDigest {
        sha256: "00".repeat(32),
        lines: 2,
        bytes: 5,
    };
    let finish = Finish {
        output: Some(record(&blobs[0])),
        error: Some(record(&blobs[1])),
        manifest: Manifest {
            input: digest.clone(),
            output: Some(digest.clone()),
            error: Some(digest),
        },
    };
    let finished = world
        .store
        .finish(&world.tenant, batch, epoch, finish, world.now())
        .await
        .expect("finish");
    assert!(matches!(finished, Finished::Done(_)), "the batch has ended");
    blobs
}

#[tokio::test]
async fn published_files_stay_when_they_were_begun_by_an_earlier_finalizer() {
    for earlier in 0..3 {
        let world = World::new();
        let batch = publish(&world, CUT).await;
        let files = end_from(&world, batch, earlier).await;
        let kept = world.batch(batch).await.run;
        let gone = kept.error_file_id.expect("an error file");
        let deleted = world.store.delete_file(&world.tenant, gone, world.now());
        assert!(deleted.await.expect("delete the error file"));
        world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
        assert_eq!(reconcile(&world).await.batches_cleared, 1);
        let [output, errors] = files;
        let left = (
            world.blob(&output).await.as_deref() == Some(b"lines"),
            world.blob(&errors).await.is_some(),
        );
        assert_eq!(left, (true, false), "{earlier} epochs before");
    }
}

#[tokio::test]
async fn shards_index_and_results_go_when_the_batch_has_ended() {
    let world = World::new();
    let batch = publish(&world, CUT).await;
    release_all(&world, batch).await;
    let mut results = Vec::new();
    for number in 0..2 {
        let shard = ShardId::root(0, number);
        let done = run_shard(&world, batch, &shard, Answers::Good, usize::MAX)
            .await
            .expect("a free shard");
        let (tenant, segment) = (world.tenant.clone(), done.segments[0]);
        results.push(BlobKey::Segment {
            tenant: tenant.clone(),
            batch,
            shard: shard.clone(),
            segment,
        });
        results.push(BlobKey::Shard {
            tenant,
            batch,
            shard,
        });
    }
    results.push(BlobKey::Index {
        tenant: world.tenant.clone(),
        batch,
        window: 0,
    });
    assert_eq!(reconcile(&world).await.batches_cleared, 0);
    let leftover = BlobKey::Output {
        tenant: world.tenant.clone(),
        batch,
        epoch: 1,
    };
    world
        .platform
        .blobs
        .put(&leftover, Bytes::from_static(b"half"))
        .await
        .expect("put a leftover");
    let output = end(&world, batch).await;
    assert_eq!(
        reconcile(&world).await.batches_cleared,
        0,
        "a late worker may still write"
    );
    world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    assert_eq!(reconcile(&world).await.batches_cleared, 1);
    results.push(leftover);
    for key in results {
        assert_eq!(world.blob(&key).await, None, "{key}");
    }
    assert_eq!(
        world.blob(&output).await.as_deref(),
        Some(b"lines".as_slice())
    );
    assert_eq!(
        world
            .store
            .list_shards(&world.tenant, batch)
            .await
            .expect("list shards"),
        []
    );
    assert_eq!(
        state(&world, batch).await,
        State::Ended(Terminal::Completed)
    );
    assert_eq!(reconcile(&world).await.batches_cleared, 0);
    world.advance_ms(86_400_000);
    assert_eq!(reconcile(&world).await.files_removed, 2);
    assert_eq!(world.blob(&output).await, None);
}

#[tokio::test]
async fn orphans_go_when_the_batch_ended_before_it_was_published() {
    let world = World::new();
    let batch = world.create_from(b"text").await;
    let orphan = BlobKey::Shard {
        tenant: world.tenant.clone(),
        batch,
        shard: ShardId::root(0, 0),
    };
    world
        .platform
        .blobs
        .put(&orphan, Bytes::from_static(b"lines"))
        .await
        .expect("put an orphan");
    world
        .store
        .apply(&world.tenant, batch, Event::WindowClosed, world.now())
        .await
        .expect("expire");
    world.advance_ms(world.settings.timing.lease_ms + world.settings.timing.takeover_ms);
    assert_eq!(reconcile(&world).await.batches_cleared, 1);
    assert_eq!(world.blob(&orphan).await, None);
}
