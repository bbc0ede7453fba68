//! A scripted worker: claims shards and commits made-up results through the store.

use std::collections::HashSet;

use batch_core::batch::TokenCounts;
use batch_core::blob_key::BlobKey;
use batch_core::format;
use batch_core::format::segment::LineResult;
use batch_core::id::{BatchId, LineNo, WorkerId};
use batch_core::output::{ErrorBody, answered, http_error};
use batch_core::shard::{SegmentRef, Shard, ShardId};
use batch_io::store::{Commit, CommitDelta, ShardClaim};
use bytes::Bytes;

use crate::world::World;

/// What the worker makes of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Every line succeeds.
    Good,
    /// Every line fails.
    Bad,
    /// Lines with even numbers fail.
    Mixed,
    /// Every line succeeds, with a thousand characters.
    Long,
    /// Every line succeeds, with so many characters that two of them are more than a part of a file.
    Huge,
}

impl Answers {
    fn body(self) -> String {
        let characters = match self {
            Answers::Good | Answers::Bad | Answers::Mixed => 0,
            Answers::Long => 1_000,
            Answers::Huge => 4_300_000,
        };
        let text = "x".repeat(characters);
        format!(r#"{{"choices":["{text}"]}}"#)
    }

    fn is_good(self, line: LineNo) -> bool {
        match self {
            Answers::Good | Answers::Long | Answers::Huge => true,
            Answers::Bad => false,
            Answers::Mixed => line.0 % 2 == 1,
        }
    }
}

/// Releases every shard of a batch's only model.
pub(crate) async fn release_all(world: &World, batch: BatchId) {
    let shards = world
        .store
        .list_shards(&world.tenant, batch)
        .await
        .expect("list shards")
        .len();
    let count = u32::try_from(shards).expect("few shards");
    assert!(
        world
            .store
            .release(&world.tenant, batch, 0, 0, count, world.now())
            .await
            .expect("release")
    );
}

/// Claims a shard, commits at most `lines_max` of its unfinished lines, and leaves it: as a worker that
/// ends there would. Returns the shard as left; none if it was not granted.
pub(crate) async fn run_shard(
    world: &World,
    batch: BatchId,
    shard: &ShardId,
    answers: Answers,
    lines_max: usize,
) -> Option<Shard> {
    let owner = WorkerId::new(world.now(), (world.platform.random)());
    let claim = world
        .store
        .claim_shard(&world.tenant, batch, shard, owner, world.now())
        .await
        .expect("claim");
    let ShardClaim::Granted { shard: held, .. } = claim else {
        return None;
    };
    let mut todo = unfinished(world, batch, &held).await;
    let last = todo.len() <= lines_max;
    todo.truncate(lines_max);
    if todo.is_empty() && !last {
        return Some(held);
    }
    let (blob, delta) = answer(batch, &todo, answers);
    let segment = SegmentRef {
        epoch: held.epoch,
        number: 0,
    };
    let key = BlobKey::Segment {
        tenant: world.tenant.clone(),
        batch,
        shard: held.id.clone(),
        segment,
    };
    world
        .platform
        .blobs
        .put(&key, Bytes::from(blob))
        .await
        .expect("put the segment");
    let committed = world
        .store
        .commit_shard(
            &world.tenant,
            batch,
            &held,
            Some(segment),
            delta,
            last,
            world.now(),
        )
        .await;
    match committed.expect("commit") {
        Commit::Ok(shard) => Some(shard),
        Commit::Fenced | Commit::Closed => None,
    }
}

fn answer(batch: BatchId, lines: &[(LineNo, String)], answers: Answers) -> (Vec<u8>, CommitDelta) {
    let mut delta = CommitDelta::default();
    let mut blob = Vec::new();
    for (line, id) in lines {
        let ok = answers.is_good(*line);
        let record = if ok {
            answered(batch, *line, id, "req_1", 200, &answers.body())
        } else {
            let error = ErrorBody {
                message: "no".to_owned(),
                kind: "invalid_request_error".to_owned(),
                param: None,
                code: None,
            };
            http_error(batch, *line, id, "req_1", 400, &error)
        };
        let tokens = TokenCounts {
            input: 3,
            cached: 0,
            output: u64::from(ok),
        };
        format::segment::encode_result(
            &mut blob,
            &LineResult {
                line: *line,
                ok,
                tokens,
                record: &record,
            },
        );
        delta.completed += u64::from(ok);
        delta.failed += u64::from(!ok);
        delta.tokens.input += tokens.input;
        delta.tokens.output += tokens.output;
    }
    (blob, delta)
}

/// Returns the lines of a shard that its segments lack, with their ids.
async fn unfinished(world: &World, batch: BatchId, shard: &Shard) -> Vec<(LineNo, String)> {
    let mut finished = HashSet::new();
    for segment in &shard.segments {
        let key = BlobKey::Segment {
            tenant: world.tenant.clone(),
            batch,
            shard: shard.id.clone(),
            segment: *segment,
        };
        let blob = world
            .blob(&key)
            .await
            .expect("a segment that the record names");
        finished
            .extend(format::segment::decode(&blob).map(|result| result.expect("a result").line));
    }
    let key = BlobKey::Shard {
        tenant: world.tenant.clone(),
        batch,
        shard: shard.id.to_root(),
    };
    let blob = world.blob(&key).await.expect("the shard's blob");
    (0..)
        .zip(format::shard::decode(&blob))
        .filter(|(ordinal, _)| {
            shard
                .subset
                .as_ref()
                .is_none_or(|subset| subset.contains(ordinal))
        })
        .map(|(_, line)| line.expect("a line").line)
        .filter(|line| !finished.contains(line))
        .map(|line| (line, format!("\"r-{}\"", line.0)))
        .collect()
}
