use proptest::prelude::*;

use super::*;
use crate::id::WorkerId;

const HOUR_MS: i64 = 3_600_000;

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name.to_owned()).unwrap()
}

fn batch(number: u8) -> BatchId {
    BatchId::new(UnixMs(i64::from(number)), [number; 16])
}

/// A batch of `shards` shards of `tokens` tokens each.
fn waiting(owner: &str, number: u8, shards: u32, tokens: u64) -> Waiting {
    Waiting {
        tenant: tenant(owner),
        batch: batch(number),
        backlog: Backlog {
            slot: 0,
            model: "m".to_owned(),
            next: 0,
            shards,
            estimated_tokens: u64::from(shards) * tokens,
            deadline: UnixMs(24 * HOUR_MS),
        },
    }
}

fn worker(slots: u32, tokens_per_s: u32) -> WorkerRecord {
    WorkerRecord {
        id: WorkerId::new(UnixMs(0), [0; 16]),
        models: vec!["m".to_owned()],
        loaded: Some("m".to_owned()),
        slots,
        tokens_per_s,
        pid: 1,
        expires_at: UnixMs(HOUR_MS),
    }
}

/// Everything of an input, with defaults that release nothing.
struct Scene {
    backlogs: Vec<Waiting>,
    workers: Vec<WorkerRecord>,
    released: Depth,
    known_rate: Option<u32>,
    cursors: Cursors,
}

impl Scene {
    fn of(backlogs: Vec<Waiting>) -> Self {
        Self {
            backlogs,
            workers: Vec::new(),
            released: Depth::default(),
            known_rate: None,
            cursors: Cursors::default(),
        }
    }

    fn plan(&self) -> DispatchPlan {
        plan(&DispatchInput {
            model: "m",
            backlogs: &self.backlogs,
            workers: &self.workers,
            released: self.released,
            known_rate: self.known_rate,
            cursors: &self.cursors,
            now: UnixMs(0),
            timing: &Timing::EMBEDDED,
        })
    }

    /// Plans, and carries the plan out; what was released is claimed at once.
    fn step(&mut self) -> Vec<Release> {
        let DispatchPlan { releases, cursors } = self.plan();
        self.cursors = serde_json::from_str(&serde_json::to_string(&cursors).unwrap()).unwrap();
        for release in &releases {
            let backlog = &mut self
                .backlogs
                .iter_mut()
                .find(|it| it.batch == release.batch)
                .unwrap()
                .backlog;
            let cost = backlog.estimated_tokens / u64::from(backlog.shards - backlog.next);
            assert_eq!(release.from, backlog.next, "releases are in order");
            backlog.next += release.count;
            assert!(backlog.next <= backlog.shards);
            backlog.estimated_tokens -= cost * u64::from(release.count);
        }
        releases
    }
}

/// Checks a plan: batch, first shard, count and lane of each release.
fn check(scene: &Scene, want: &[(u8, u32, u32, Lane)]) {
    let told: Vec<_> = scene
        .plan()
        .releases
        .into_iter()
        .map(|it| (it.batch, it.from, it.count, it.lane))
        .collect();
    let want: Vec<_> = want
        .iter()
        .map(|(number, from, count, lane)| (batch(*number), *from, *count, *lane))
        .collect();
    assert_eq!(told, want);
}

#[test]
fn four_shards_are_released_when_no_worker_is_up() {
    let mut scene = Scene::of(vec![waiting("a", 1, 9, 10)]);
    check(&scene, &[(1, 0, 4, Lane::Bulk)]);
    scene.released = Depth {
        shards: 3,
        tokens: 30,
    };
    check(&scene, &[(1, 0, 1, Lane::Bulk)]);
    scene.released = Depth {
        shards: 4,
        tokens: 40,
    };
    check(&scene, &[]);
}

#[test]
fn one_shard_a_slot_is_released_when_workers_have_more_than_four() {
    let mut scene = Scene::of(vec![waiting("a", 1, 9, 10)]);
    scene.workers = vec![worker(4, 0), worker(2, 0)];
    check(&scene, &[(1, 0, 6, Lane::Bulk)]);
    scene.workers[0].loaded = None;
    scene.workers[1].expires_at = UnixMs(0);
    check(&scene, &[(1, 0, 4, Lane::Bulk)]);
}

#[test]
fn two_periods_of_measured_work_are_released_when_shards_are_small() {
    // 10 tokens a second for two periods of 2 s are 40 tokens: eight shards of 5.
    let mut scene = Scene::of(vec![waiting("a", 1, 99, 5)]);
    scene.workers = vec![worker(1, 10)];
    check(&scene, &[(1, 0, 8, Lane::Bulk)]);
}

#[test]
fn one_release_fits_a_transaction() {
    let mut scene = Scene::of(vec![waiting("a", 1, 300, 1)]);
    scene.workers = vec![worker(200, 0)];
    check(
        &scene,
        &[
            (1, 0, 98, Lane::Bulk),
            (1, 98, 98, Lane::Bulk),
            (1, 196, 4, Lane::Bulk),
        ],
    );
}

#[test]
fn other_models_finished_backlogs_and_closed_windows_are_passed_over() {
    let mut backlogs = vec![
        waiting("a", 1, 9, 10),
        waiting("a", 2, 9, 10),
        waiting("a", 3, 9, 10),
    ];
    backlogs[0].backlog.model = "other".to_owned();
    backlogs[1].backlog.next = 9;
    backlogs[2].backlog.deadline = UnixMs(0);
    check(&Scene::of(backlogs), &[]);
    check(&Scene::of(Vec::new()), &[]);
}

#[test]
fn small_batches_take_the_fast_lane_and_pass_a_full_queue() {
    let mut scene = Scene::of(vec![
        waiting("a", 1, 9, 10),
        waiting("b", 2, 1, 10),
        waiting("c", 3, 1, 10),
    ]);
    scene.released = Depth {
        shards: 4,
        tokens: 40,
    };
    check(&scene, &[(2, 0, 1, Lane::Fast), (3, 0, 1, Lane::Fast)]);
    scene.released.shards = 8;
    check(&scene, &[]);
}

#[test]
fn urgent_batch_goes_first_within_its_tenant() {
    // 900 tokens at 1 token a second take 900 s; slack below 1,800 s is urgent.
    let mut scene = Scene::of(vec![
        waiting("a", 1, 9, 100),
        waiting("a", 2, 9, 100),
        waiting("a", 3, 9, 100),
    ]);
    scene.known_rate = Some(1);
    scene.backlogs[1].backlog.deadline = UnixMs(1_799_000);
    scene.backlogs[2].backlog.deadline = UnixMs(1_700_000);
    check(&scene, &[(3, 0, 8, Lane::Fast)]);
    scene.backlogs[2].backlog.deadline = UnixMs(1_800_000);
    scene.released.shards = 7;
    check(&scene, &[(2, 0, 1, Lane::Fast)]);
}

#[test]
fn urgent_batch_takes_no_more_than_its_tenants_share_while_others_wait() {
    let mut scene = Scene::of(vec![waiting("a", 1, 99, 100), waiting("b", 2, 99, 100)]);
    scene.known_rate = Some(1);
    scene.backlogs[1].backlog.deadline = UnixMs(1_000_000);
    let mut released = [0, 0];
    for _ in 0..10 {
        for release in scene.step() {
            released[usize::from(release.batch == batch(2))] += release.count;
        }
    }
    // Beyond the queue's normal depth only the fast lane goes on, with what nobody else may have.
    assert!(
        released[0] >= 15 && released[1] >= released[0],
        "{released:?}"
    );
}

#[test]
fn tenant_with_many_batches_gets_no_more_than_one_with_few() {
    let mut backlogs: Vec<_> = (1..=9)
        .map(|number| waiting("a", number, 50, 100))
        .collect();
    backlogs.push(waiting("b", 10, 50, 100));
    let mut scene = Scene::of(backlogs);
    let releases: Vec<_> = (0..10).flat_map(|_| scene.step()).collect();
    let of = |name: &str| {
        releases
            .iter()
            .filter(|it| it.tenant == tenant(name))
            .map(|it| it.count)
            .sum::<u32>()
    };
    assert_eq!((of("a"), of("b")), (20, 20));
    let batches: std::collections::BTreeSet<_> = releases.iter().map(|it| it.batch).collect();
    assert_eq!(batches.len(), 10, "every batch of a tenant has its turn");
}

#[test]
fn idle_tenants_are_forgotten() {
    let mut scene = Scene::of(vec![waiting("a", 1, 2, 10), waiting("b", 2, 50, 10)]);
    for _ in 0..3 {
        scene.step();
    }
    scene.cursors = scene.plan().cursors;
    assert_eq!(
        (scene.cursors.tenants.len(), scene.cursors.batches.len()),
        (1, 1)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tenants that always wait get the same tokens, within a few shards, however large their shards are.
    #[test]
    fn tokens_are_shared_evenly(costs in prop::collection::vec(1_u64..1_000, 2..5), depth in 1_u64..40) {
        let names = ["a", "b", "c", "d"];
        let owners = || costs.iter().zip(names).zip(1..);
        let mut scene = Scene::of(owners().map(|((cost, name), number)| waiting(name, number, 100_000, *cost)).collect());
        scene.workers = vec![worker(u32::try_from(depth).unwrap(), 0)];
        let mut tokens = vec![0_u64; costs.len()];
        for _ in 0..200 {
            for release in scene.step() {
                let index = scene.backlogs.iter().position(|it| it.batch == release.batch).unwrap();
                tokens[index] += costs[index] * u64::from(release.count);
            }
        }
        let most_costly = costs.iter().max().unwrap();
        let (least, most) = (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
        prop_assert!(most - least <= 3 * most_costly, "{tokens:?} at {costs:?}");
    }

    /// Whatever waits, a plan stays within the depth and never releases a shard twice.
    #[test]
    fn depth_is_kept(
        batches in prop::collection::vec((0_usize..3, 1_u32..6, 1_u64..500, 0_i64..4), 0..12),
        released in 0_u64..12,
        rate in prop::option::of(1_u32..1_000),
    ) {
        let mut backlogs = Vec::new();
        for (number, (owner, shards, tokens, hours)) in (1..).zip(batches) {
            let mut waiting = waiting(["a", "b", "c"][owner], number, shards, tokens);
            waiting.backlog.deadline = UnixMs(hours * HOUR_MS);
            backlogs.push(waiting);
        }
        let mut scene = Scene::of(backlogs);
        scene.released.shards = released;
        scene.known_rate = rate;
        let open: u32 = scene.backlogs.iter().filter(|it| it.backlog.deadline.0 > 0).map(|it| it.backlog.shards).sum();
        let mut bulk = released;
        let mut all = released;
        for release in scene.step() {
            prop_assert!(release.lane == Lane::Fast || bulk < 4);
            all += u64::from(release.count);
            bulk = all;
        }
        prop_assert!(all <= released.max(8));
        prop_assert!(all >= released.max(4).min(released + u64::from(open)));
    }
}
