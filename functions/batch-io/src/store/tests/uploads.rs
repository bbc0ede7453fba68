//! Uploads: one end each, parts only before it, and files that a job puts together after it.

use batch_core::id::{PartId, UploadId};
use batch_core::limits::UPLOAD_LIFE_S;
use batch_core::upload::{Assembly, AssemblySource, Piece, Upload, UploadPart, UploadStatus};

use super::*;

fn upload(bench: &Bench) -> Upload {
    Upload {
        id: UploadId::new(bench.now(), bench.entropy()),
        tenant: bench.tenant.clone(),
        bytes: 12,
        created_at: bench.now(),
        expires_at: bench.now().plus_ms(UPLOAD_LIFE_S * 1000),
        filename: "in.jsonl".to_owned(),
        mime_type: "application/jsonl".to_owned(),
        purpose: Purpose::Batch,
        expires_after: None,
        status: UploadStatus::Pending,
        schema: SCHEMA,
    }
}

fn part(bench: &Bench, upload: &Upload) -> UploadPart {
    let id = PartId::new(bench.now(), bench.entropy());
    let blob = BlobKey::Part {
        tenant: bench.tenant.clone(),
        upload: upload.id,
        part: id,
    };
    UploadPart {
        id,
        upload: upload.id,
        bytes: 12,
        created_at: bench.now(),
        blob,
    }
}

async fn collect(bench: &Bench, upload: &Upload, now: UnixMs) -> UploadCollection {
    bench
        .store
        .collect_upload(&bench.tenant, upload.id, now)
        .await
        .unwrap()
}

async fn begun(bench: &Bench) -> (Upload, UploadPart) {
    let (upload, store) = (upload(bench), &bench.store);
    store.create_upload(&upload).await.unwrap();
    store.create_upload(&upload).await.unwrap();
    let part = part(bench, &upload);
    assert!(store.add_part(&bench.tenant, &part).await.unwrap());
    assert!(store.add_part(&bench.tenant, &part).await.unwrap());
    assert_eq!(
        store.list_parts(&bench.tenant, upload.id).await.unwrap(),
        std::slice::from_ref(&part)
    );
    (upload, part)
}

#[tokio::test]
async fn an_upload_becomes_one_file_however_often_it_is_asked() {
    let bench = Bench::new(ROUGH);
    let (upload, kept) = begun(&bench).await;
    let (file, other) = (bench.file(Purpose::Batch), bench.file(Purpose::Batch));
    assert!(bench.store.complete_upload(&upload, &file).await.unwrap());
    assert!(bench.store.complete_upload(&upload, &file).await.unwrap());
    assert!(!bench.store.complete_upload(&upload, &other).await.unwrap());
    assert!(
        !bench
            .store
            .cancel_upload(&bench.tenant, upload.id, bench.now())
            .await
            .unwrap()
    );
    assert!(
        !bench
            .store
            .add_part(&bench.tenant, &part(&bench, &upload))
            .await
            .unwrap()
    );
    assert!(
        bench.store.add_part(&bench.tenant, &kept).await.unwrap(),
        "a part that is there was added"
    );

    let stored = bench
        .store
        .load_upload(&bench.tenant, upload.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stored.status, UploadStatus::Completed(file.id));
    assert_eq!(
        bench
            .store
            .load_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap(),
        Some(file)
    );
    assert_eq!(
        bench
            .store
            .load_file(&bench.tenant, other.id, bench.now())
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_cancelled_upload_cannot_be_completed_and_its_parts_go() {
    let bench = Bench::new(CALM);
    let (upload, _) = begun(&bench).await;
    assert_eq!(
        collect(&bench, &upload, bench.now()).await,
        UploadCollection::Nothing
    );
    assert!(
        bench
            .store
            .cancel_upload(&bench.tenant, upload.id, bench.now())
            .await
            .unwrap()
    );
    assert!(
        bench
            .store
            .cancel_upload(&bench.tenant, upload.id, bench.now())
            .await
            .unwrap()
    );
    assert!(
        !bench
            .store
            .complete_upload(&upload, &bench.file(Purpose::Batch))
            .await
            .unwrap()
    );

    let found = DueRef::Upload {
        tenant: bench.tenant.clone(),
        upload: upload.id,
    };
    assert_eq!(bench.due(crate::port::WorkKind::Retention).await, [found]);
    assert_eq!(
        collect(&bench, &upload, bench.now()).await,
        UploadCollection::Remove
    );
    bench
        .store
        .forget_upload(&bench.tenant, upload.id)
        .await
        .unwrap();
    assert_eq!(
        bench
            .store
            .load_upload(&bench.tenant, upload.id)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        bench
            .store
            .list_parts(&bench.tenant, upload.id)
            .await
            .unwrap(),
        []
    );
}

#[tokio::test]
async fn an_upload_cannot_be_completed_once_its_time_is_over_and_collected() {
    let bench = Bench::new(CALM);
    let (upload, _) = begun(&bench).await;
    let late = bench.pass_ms(UPLOAD_LIFE_S * 1000);
    assert_eq!(
        collect(&bench, &upload, late).await,
        UploadCollection::Remove
    );
    assert!(
        !bench
            .store
            .complete_upload(&upload, &bench.file(Purpose::Batch))
            .await
            .unwrap()
    );
}

/// Completes an upload of `pieces` pieces, for a job to put its file together.
async fn assembling(bench: &Bench, pieces: u32) -> (Assembly, File) {
    let upload = upload(bench);
    bench.store.create_upload(&upload).await.unwrap();
    let file = File {
        status: FileStatus::Uploaded,
        ..bench.file(Purpose::Batch)
    };
    let pieces = (0..pieces).map(|number| Piece {
        part: PartId::new(bench.now(), bench.entropy()),
        start: u64::MAX - u64::from(number),
        end: u64::MAX,
    });
    let assembly = Assembly {
        file: file.id,
        source: AssemblySource::Parts(pieces.collect()),
        md5: Some("0".repeat(32)),
        upload,
    };
    for _ in 0..2 {
        assert!(
            bench
                .store
                .begin_assembly(&assembly, &file, bench.now())
                .await
                .unwrap()
        );
    }
    (assembly, file)
}

async fn stored_file(bench: &Bench, file: &File) -> Option<File> {
    let now = bench.now();
    bench
        .store
        .load_file(&bench.tenant, file.id, now)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_longest_list_of_pieces_comes_back_as_it_was() {
    let bench = Bench::new(CALM);
    let (assembly, file) = assembling(&bench, 10_000).await;
    let stored = bench
        .store
        .load_assembly(&bench.tenant, assembly.upload.id)
        .await
        .unwrap();
    let upload = Upload {
        status: UploadStatus::Completed(file.id),
        ..assembly.upload.clone()
    };
    assert_eq!(stored, Some(Assembly { upload, ..assembly }));
    assert_eq!(stored_file(&bench, &file).await, Some(file));
}

#[tokio::test]
async fn an_assembly_ends_once_and_is_asked_for_until_then() {
    let bench = Bench::new(CALM);
    let (assembly, file) = assembling(&bench, 1).await;
    let (store, id) = (&bench.store, assembly.upload.id);
    assert_eq!(
        collect(&bench, &assembly.upload, bench.now()).await,
        UploadCollection::Nothing
    );
    for _ in 0..3 {
        let late = bench.pass_ms(store.timing().message_lost_ms);
        let found = collect(&bench, &assembly.upload, late).await;
        assert_eq!(found, UploadCollection::Assembling(file.id));
        assert_eq!(
            collect(&bench, &assembly.upload, late).await,
            UploadCollection::Nothing
        );
    }
    let (tenant, now) = (&bench.tenant, bench.now());
    let end = |status: FileStatus| async move {
        let ended = store.end_assembly(tenant, id, file.id, &status, now).await;
        ended.unwrap()
    };
    assert_eq!(end(FileStatus::Processed).await, AssemblyEnded::Done);
    assert_eq!(
        end(FileStatus::Error("late".to_owned())).await,
        AssemblyEnded::Already
    );
    assert_eq!(store.load_assembly(&bench.tenant, id).await.unwrap(), None);
    let stored = store
        .load_file(&bench.tenant, file.id, bench.now())
        .await
        .unwrap();
    assert_eq!(stored.map(|file| file.status), Some(FileStatus::Processed));
    let late = bench.pass_ms(UPLOAD_LIFE_S * 1000);
    assert_eq!(
        collect(&bench, &assembly.upload, late).await,
        UploadCollection::Remove
    );
    store.forget_upload(&bench.tenant, id).await.unwrap();
    let partition = paths::parts(&bench.tenant, id);
    let order = crate::port::QueryOrder::Ascending;
    let left = store.records.query(&partition, "", None, order, 10).await;
    assert_eq!(left.unwrap().items, []);
}

#[tokio::test]
async fn an_assembly_of_a_deleted_file_tells_when_the_file_is_gone() {
    let bench = Bench::new(CALM);
    let (assembly, file) = assembling(&bench, 1).await;
    let (store, id, processed) = (&bench.store, assembly.upload.id, FileStatus::Processed);
    assert!(
        store
            .delete_file(&bench.tenant, file.id, bench.now())
            .await
            .unwrap()
    );
    store.forget_file(&bench.tenant, file.id).await.unwrap();
    for _ in 0..2 {
        let ended = store.end_assembly(&bench.tenant, id, file.id, &processed, bench.now());
        assert_eq!(ended.await.unwrap(), AssemblyEnded::FileGone);
    }
    assert_eq!(stored_file(&bench, &file).await, None);
}
