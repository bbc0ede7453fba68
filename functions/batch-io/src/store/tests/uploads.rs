//! Uploads: one end each, and parts only before it.

use batch_core::id::{PartId, UploadId};
use batch_core::limits::UPLOAD_LIFE_S;
use batch_core::upload::{Upload, UploadPart, UploadStatus};

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
    assert!(
        !bench
            .store
            .collect_upload(&bench.tenant, upload.id, bench.now())
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
    assert!(
        bench
            .store
            .collect_upload(&bench.tenant, upload.id, bench.now())
            .await
            .unwrap()
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
    assert!(
        bench
            .store
            .collect_upload(&bench.tenant, upload.id, late)
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
}
