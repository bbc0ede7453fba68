//! Stage leases, and what the stages write: published, rejected, finished.

use batch_core::batch::ValidationError;
use batch_core::lifecycle::{SealedAs, State, Terminal};

use super::*;
use crate::port::WorkKind;

fn nothing() -> Finish {
    Finish {
        output: None,
        error: None,
        manifest: manifest(),
    }
}

#[tokio::test]
async fn a_stage_is_claimed_by_one_until_its_lease_is_over() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let claim = |stage| {
        bench
            .store
            .claim_stage(&bench.tenant, batch, stage, bench.now())
    };
    assert_eq!(claim(Stage::Finalize).await.unwrap(), None);
    assert_eq!(bench.claim(batch, Stage::Validate).await.epoch, 1);
    assert_eq!(claim(Stage::Validate).await.unwrap(), None);

    bench.pass_ms(TIMING.lease_ms - 1);
    let renew = |epoch| {
        bench
            .store
            .renew_stage(&bench.tenant, batch, Stage::Validate, epoch, bench.now())
    };
    assert!(renew(1).await.unwrap());
    assert!(!renew(2).await.unwrap());
    bench.pass_ms(TIMING.lease_ms - 1);
    assert_eq!(claim(Stage::Validate).await.unwrap(), None);
    bench.pass_ms(1);
    assert_eq!(bench.claim(batch, Stage::Validate).await.epoch, 2);
    assert!(!renew(1).await.unwrap());
}

#[tokio::test]
async fn publishing_again_changes_nothing_and_an_old_epoch_is_fenced() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let old = bench.claim(batch, Stage::Validate).await.epoch;
    bench.pass_ms(TIMING.lease_ms);
    let epoch = bench.claim(batch, Stage::Validate).await.epoch;
    let publish = |epoch| {
        bench.store.publish(
            &bench.tenant,
            batch,
            epoch,
            bench.publication(2),
            bench.now(),
        )
    };
    assert_eq!(publish(old).await.unwrap(), Published::Fenced);
    assert!(
        !bench
            .store
            .reject(&bench.tenant, batch, old, vec![], bench.now())
            .await
            .unwrap()
    );

    let first = publish(epoch).await.unwrap();
    bench.pass_ms(5);
    assert_eq!(publish(epoch).await.unwrap(), first);
    assert_eq!(first, Published::Done(Box::new(bench.run(batch).await)));
    assert!(
        !bench
            .store
            .reject(&bench.tenant, batch, epoch, vec![], bench.now())
            .await
            .unwrap()
    );
    let run = bench.run(batch).await;
    assert_eq!(
        (run.state, run.counts.total, run.shards_total),
        (State::InProgress, 8, 2)
    );
    assert_eq!(run.manifest.unwrap().input, digest());
}

#[tokio::test]
async fn a_publication_of_many_models_is_written_in_parts() {
    let bench = Bench::new(ROUGH);
    let batch = bench.created().await;
    let epoch = bench.claim(batch, Stage::Validate).await.epoch;
    let one = bench.publication(1);
    let backlogs: Vec<Backlog> = (0..250)
        .map(|slot| Backlog {
            slot,
            model: format!("model-{slot}"),
            ..one.backlogs[0].clone()
        })
        .collect();
    let publication = Publication { backlogs, ..one };
    let published = bench
        .store
        .publish(&bench.tenant, batch, epoch, publication, bench.now())
        .await
        .unwrap();
    assert!(matches!(published, Published::Done(_)));
    bench.pass_ms(ROUGH.index_lag_ms);
    let mut slots: Vec<u16> = bench
        .store
        .list_backlogs()
        .await
        .unwrap()
        .iter()
        .map(|(_, _, backlog)| backlog.slot)
        .collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..250).collect::<Vec<u16>>());

    bench.apply(batch, Event::CancelRequested).await.unwrap();
    bench.apply(batch, Event::GraceOver).await.unwrap();
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    assert!(matches!(
        bench.finish(batch, epoch, nothing()).await,
        Finished::Done(_)
    ));
    bench.pass_ms(ROUGH.index_lag_ms);
    assert_eq!(bench.store.list_backlogs().await.unwrap(), []);
}

#[tokio::test]
async fn waiting_tokens_are_reserved_by_a_publication_and_returned_by_the_end() {
    let bench = Bench::new(CALM);
    let publish = async |batch: BatchId| {
        let epoch = bench.claim(batch, Stage::Validate).await.epoch;
        let publication = Publication {
            enqueued_tokens_max: Some(150),
            ..bench.publication(1)
        };
        bench
            .store
            .publish(&bench.tenant, batch, epoch, publication, bench.now())
            .await
            .unwrap()
    };
    let (first, second, third) = (
        bench.created().await,
        bench.created().await,
        bench.created().await,
    );
    assert!(matches!(publish(first).await, Published::Done(_)));
    assert_eq!(
        publish(second).await,
        Published::OverTokenLimit { limit: 150 }
    );
    let too_much = Publication {
        enqueued_tokens_max: Some(99),
        ..bench.publication(1)
    };
    let over = bench
        .store
        .publish(&bench.tenant, second, 1, too_much, bench.now())
        .await
        .unwrap();
    assert_eq!(over, Published::OverTokenLimit { limit: 99 });
    assert!(
        bench
            .store
            .reject(&bench.tenant, second, 1, vec![], bench.now())
            .await
            .unwrap()
    );

    bench.apply(first, Event::CancelRequested).await.unwrap();
    bench.apply(first, Event::GraceOver).await.unwrap();
    let epoch = bench.claim(first, Stage::Finalize).await.epoch;
    for _ in 0..2 {
        assert!(matches!(
            bench.finish(first, epoch, nothing()).await,
            Finished::Done(_)
        ));
    }
    assert!(matches!(publish(third).await, Published::Done(_)));
}

#[tokio::test]
async fn a_rejected_batch_fails_with_its_errors() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let epoch = bench.claim(batch, Stage::Validate).await.epoch;
    let errors = vec![ValidationError {
        code: "empty_file".to_owned(),
        message: "The input file is empty.".to_owned(),
        line: None,
        param: None,
    }];
    for _ in 0..2 {
        assert!(
            bench
                .store
                .reject(&bench.tenant, batch, epoch, errors.clone(), bench.now())
                .await
                .unwrap()
        );
    }
    let view = bench
        .store
        .load_batch(&bench.tenant, batch)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(view.run.state, State::Ended(Terminal::Failed));
    assert_eq!(view.run.moments.ended_at, Some(bench.now()));
    assert_eq!(view.errors, Some(errors));
    assert_eq!(
        bench
            .store
            .list_batches(&bench.tenant, None, 1)
            .await
            .unwrap()
            .items,
        [view]
    );
    let published = bench
        .store
        .publish(
            &bench.tenant,
            batch,
            epoch,
            bench.publication(1),
            bench.now(),
        )
        .await
        .unwrap();
    assert_eq!(published, Published::Fenced);
    let told = DueRef::Outbox {
        tenant: bench.tenant.clone(),
        batch,
    };
    assert_eq!(bench.due(WorkKind::Outbox).await, [told]);
}

#[tokio::test]
async fn a_finish_counts_every_line_and_happens_once() {
    let bench = Bench::new(CALM);
    let batch = bench.released(2).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 3, false).await);
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    let early = bench.finish(batch, 1, nothing()).await;
    assert_eq!(early, Finished::Fenced);
    bench.apply(batch, Event::GraceOver).await.unwrap();

    let old = bench.claim(batch, Stage::Finalize).await.epoch;
    bench.pass_ms(TIMING.lease_ms);
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let (output, error) = (
        bench.file(Purpose::BatchOutput),
        bench.file(Purpose::BatchOutput),
    );
    let finish = Finish {
        output: Some(output.clone()),
        error: Some(error.clone()),
        manifest: manifest(),
    };
    assert_eq!(
        bench.finish(batch, old, finish.clone()).await,
        Finished::Fenced
    );
    let first = bench.finish(batch, epoch, finish.clone()).await;
    bench.pass_ms(5);
    assert_eq!(bench.finish(batch, epoch, finish).await, first);

    let run = bench.run(batch).await;
    assert_eq!(first, Finished::Done(Box::new(run.clone())));
    assert_eq!(run.state, State::Ended(Terminal::Cancelled));
    assert_eq!(
        (run.counts.total, run.counts.completed, run.counts.failed),
        (8, 3, 5)
    );
    assert_eq!(
        (run.output_file_id, run.error_file_id),
        (Some(output.id), Some(error.id))
    );
    assert_eq!(run.manifest, Some(manifest()));
    for file in [output, error] {
        assert_eq!(
            bench
                .store
                .load_file(&bench.tenant, file.id, bench.now())
                .await
                .unwrap(),
            Some(file)
        );
    }
    assert!(
        bench
            .records
            .get(&paths::ledger(&bench.tenant, batch))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(bench.due(WorkKind::Outbox).await.len(), 1);
    bench
        .store
        .settle_outbox(&bench.tenant, batch)
        .await
        .unwrap();
    assert_eq!(bench.due(WorkKind::Outbox).await, []);
}

#[tokio::test]
async fn a_cancel_while_files_are_written_ends_cancelled_with_every_result() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 4, true).await);
    bench.apply(batch, Event::AllShardsDone).await.unwrap();
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let cancelled = bench
        .apply(batch, Event::CancelRequested)
        .await
        .unwrap()
        .run;
    assert_eq!(cancelled.state, State::Sealed(SealedAs::Cancelled));
    assert_eq!(cancelled.moments.cancelling_at, Some(bench.now()));
    assert!(
        bench
            .store
            .renew_stage(&bench.tenant, batch, Stage::Finalize, epoch, bench.now())
            .await
            .unwrap()
    );

    let Finished::Done(run) = bench.finish(batch, epoch, nothing()).await else {
        panic!("fenced")
    };
    assert_eq!(run.state, State::Ended(Terminal::Cancelled));
    assert_eq!((run.counts.completed, run.counts.failed), (4, 0));
}

#[tokio::test]
async fn a_batch_cancelled_while_validating_ends_with_nothing() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let old = bench.claim(batch, Stage::Validate).await.epoch;
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    assert!(
        !bench
            .store
            .renew_stage(&bench.tenant, batch, Stage::Validate, old, bench.now())
            .await
            .unwrap()
    );
    let published = bench
        .store
        .publish(&bench.tenant, batch, old, bench.publication(1), bench.now())
        .await
        .unwrap();
    assert_eq!(published, Published::Fenced);
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let Finished::Done(run) = bench.finish(batch, epoch, nothing()).await else {
        panic!("fenced")
    };
    assert_eq!(
        (run.state, run.counts.total, run.counts.failed),
        (State::Ended(Terminal::Cancelled), 0, 0)
    );
    let quota = bench
        .records
        .get(&paths::quota(&bench.tenant))
        .await
        .unwrap();
    assert_eq!(quota, None, "it reserved nothing, and returned nothing");
}

#[tokio::test]
async fn events_that_carry_data_are_refused() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    for event in [
        Event::Published {
            total: 1,
            shards_total: 1,
        },
        Event::Rejected,
        Event::Finalized,
    ] {
        let error = bench.apply(batch, event).await.unwrap_err();
        assert!(
            matches!(error, ApplyError::Io(io) if io.kind == crate::IoKind::TooLarge),
            "{event:?}"
        );
    }
    let missing = bench
        .apply(bench.batch_id(), Event::CancelRequested)
        .await
        .unwrap_err();
    assert!(matches!(missing, ApplyError::Missing));
}

#[tokio::test]
async fn a_batch_is_looked_at_when_its_state_says() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let key = paths::BatchRecord::Run.key(&bench.tenant, batch);
    let created_at = bench.now();
    assert_eq!(
        bench.due_of(&key).await,
        Some(created_at.plus_ms(TIMING.message_lost_ms))
    );
    bench.pass_ms(TIMING.message_lost_ms);
    let due = DueRef::Batch {
        tenant: bench.tenant.clone(),
        batch,
    };
    assert_eq!(bench.due(WorkKind::Batch).await, [due]);
    bench
        .store
        .reschedule(&bench.tenant, batch, bench.now())
        .await
        .unwrap();
    assert_eq!(
        bench.due_of(&key).await,
        Some(bench.now().plus_ms(TIMING.message_lost_ms))
    );

    let claimed = bench.claim(batch, Stage::Validate).await;
    assert_eq!(bench.due_of(&key).await, Some(claimed.run.stage.until));
    bench
        .store
        .put_shards(&bench.tenant, batch, &[shard(0, 4)])
        .await
        .unwrap();
    bench
        .store
        .publish(
            &bench.tenant,
            batch,
            claimed.epoch,
            bench.publication(1),
            bench.now(),
        )
        .await
        .unwrap();
    assert_eq!(bench.due_of(&key).await, Some(claimed.params.expires_at));

    assert!(
        bench
            .store
            .release(&bench.tenant, batch, 0, 0, 1, bench.now())
            .await
            .unwrap()
    );
    let held = bench.held(batch, 0).await;
    let held = committed(bench.commit(batch, &held, 0, 1, false).await);
    assert_eq!(bench.due_of(&key).await, Some(claimed.params.expires_at));
    committed(bench.commit(batch, &held, 1, 3, true).await);
    assert_eq!(
        bench.due_of(&key).await,
        Some(bench.now()),
        "the worker may die before it seals the batch"
    );

    bench.apply(batch, Event::AllShardsDone).await.unwrap();
    assert_eq!(
        bench.due_of(&key).await,
        Some(bench.now().plus_ms(TIMING.message_lost_ms))
    );
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    bench.finish(batch, epoch, nothing()).await;
    assert_eq!(bench.due_of(&key).await, None);
}

#[tokio::test]
async fn a_run_record_stays_below_one_kilobyte_to_its_end() {
    let bench = Bench::new(CALM);
    let batch = bench.released(1).await;
    let held = bench.held(batch, 0).await;
    committed(bench.commit(batch, &held, 0, 4, true).await);
    bench.apply(batch, Event::AllShardsDone).await.unwrap();
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    let epoch = bench.claim(batch, Stage::Finalize).await.epoch;
    let key = paths::BatchRecord::Run.key(&bench.tenant, batch);
    let bytes = async || {
        crate::port::record_rules::item_bytes(
            &key,
            &bench.records.get(&key).await.unwrap().unwrap(),
        )
    };
    assert!(bytes().await < 1_024, "{} while it runs", bytes().await);
    let (output, error) = (
        bench.file(Purpose::BatchOutput),
        bench.file(Purpose::BatchOutput),
    );
    bench
        .finish(
            batch,
            epoch,
            Finish {
                output: Some(output),
                error: Some(error),
                manifest: manifest(),
            },
        )
        .await;
    assert!(bytes().await < 1_024, "{} at its end", bytes().await);
}

#[tokio::test]
async fn a_stage_that_was_given_back_can_be_claimed_at_once_and_is_not_asked_for_meanwhile() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    let (epoch, store) = (
        bench.claim(batch, Stage::Validate).await.epoch,
        &bench.store,
    );
    let give_back =
        |stage, epoch| store.give_back_stage(&bench.tenant, batch, stage, epoch, bench.now());
    assert!(!give_back(Stage::Validate, epoch + 1).await.unwrap());
    assert!(!give_back(Stage::Finalize, epoch).await.unwrap());
    assert!(give_back(Stage::Validate, epoch).await.unwrap());
    let key = paths::BatchRecord::Run.key(&bench.tenant, batch);
    assert_eq!(
        bench.due_of(&key).await,
        Some(bench.now().plus_ms(TIMING.message_lost_ms))
    );
    assert_eq!(bench.claim(batch, Stage::Validate).await.epoch, epoch + 1);
    assert!(!give_back(Stage::Validate, epoch).await.unwrap());
}

#[tokio::test]
async fn a_saved_place_stays_until_its_own_finalizer_drops_it() {
    let bench = Bench::new(CALM);
    let batch = bench.created().await;
    bench.apply(batch, Event::CancelRequested).await.unwrap();
    let store = &bench.store;
    let place = async || bench.run(batch).await.saved_place;
    let first = bench.claim(batch, Stage::Finalize).await.epoch;
    let save = store.save_place(&bench.tenant, batch, first, bench.now());
    assert!(save.await.unwrap());

    let second = bench.claim(batch, Stage::Finalize).await.epoch;
    let renew = store.renew_stage(&bench.tenant, batch, Stage::Finalize, second, bench.now());
    assert!(renew.await.unwrap());
    let drop_place = |epoch| store.drop_place(&bench.tenant, batch, epoch, bench.now());
    assert!(!drop_place(first).await.unwrap());
    assert_eq!(place().await, Some(first));
    assert!(drop_place(second).await.unwrap());
    assert_eq!(place().await, None);
    let third = bench.claim(batch, Stage::Finalize).await;
    assert_eq!((third.epoch, third.run.saved_place), (second + 1, None));
}
