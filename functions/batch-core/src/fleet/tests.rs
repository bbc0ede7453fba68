use proptest::prelude::*;

use super::*;

const HOUR_MS: i64 = 3_600_000;

fn demand(model: &str, work: &[(i64, u64)]) -> Demand {
    let due = |(deadline, worker_ms): &(i64, u64)| DueWork {
        deadline: UnixMs(*deadline),
        worker_ms: *worker_ms,
    };
    Demand {
        model: model.to_owned(),
        work: work.iter().map(due).collect(),
    }
}

fn wanted(demands: &[Demand], min: u32, max: u32, now: i64) -> u32 {
    let group = Group {
        models: &["a".to_owned(), "b".to_owned()],
        workers_min: min,
        workers_max: max,
    };
    workers_wanted(demands, &group, UnixMs(now))
}

#[test]
fn workers_fit_the_work_into_half_of_the_time() {
    let hour = 3_600_000_u64;
    // In 24 h: 24 / 2 h less 5 min.
    let usable_24h = 12 * hour - 300_000;
    // What it is, work as (ms to its deadline, GPU-ms), workers.
    type Case<'a> = (&'a str, &'a [(i64, u64)], u32);
    let cases: &[Case<'_>] = &[
        ("nothing waits", &[], 0),
        ("work of no length", &[(HOUR_MS, 0)], 0),
        ("a little waits", &[(24 * HOUR_MS, 1)], 1),
        (
            "just as much as one can do",
            &[(24 * HOUR_MS, usable_24h)],
            1,
        ),
        ("one millisecond more", &[(24 * HOUR_MS, usable_24h + 1)], 2),
        ("56 hours in 24", &[(24 * HOUR_MS, 56 * hour)], 5),
        // 1 h / 2 - 5 min = 25 min.
        ("five hours in one", &[(HOUR_MS, 5 * hour)], 12),
        ("an hour in two minutes", &[(120_000, hour)], 30),
        ("an hour that is late", &[(-1, hour)], 30),
        (
            "the later deadline rules",
            &[(HOUR_MS, hour), (24 * HOUR_MS, 240 * hour)],
            21,
        ),
        (
            "the earlier deadline rules",
            &[(24 * HOUR_MS, hour), (HOUR_MS, 10 * hour)],
            24,
        ),
        (
            "work of one deadline adds up",
            &[(HOUR_MS, hour), (HOUR_MS, hour)],
            5,
        ),
    ];
    for (name, work, expected) in cases {
        assert_eq!(wanted(&[demand("a", work)], 0, 100, 0), *expected, "{name}");
    }
}

#[test]
fn bounds_of_the_group_hold() {
    let much = [demand("a", &[(HOUR_MS, u64::MAX), (HOUR_MS, u64::MAX)])];
    for (demands, min, max, expected) in [
        (&much[..], 0, 8, 8),
        (&much[..], 0, u32::MAX, u32::MAX),
        (&[][..], 2, 8, 2),
        (&[][..], 5, 3, 3),
        (&much[..], 0, 0, 0),
    ] {
        assert_eq!(wanted(demands, min, max, 0), expected, "{min} to {max}");
    }
}

#[test]
fn models_of_a_group_add_up_and_others_do_not_count() {
    let hour = 3_600_000;
    let demands = [
        demand("a", &[(HOUR_MS, hour)]),
        demand("b", &[(HOUR_MS, hour)]),
        demand("c", &[(HOUR_MS, 100 * hour)]),
    ];
    assert_eq!(wanted(&demands, 0, 100, 0), 5);
}

#[test]
fn tokens_take_time_by_the_rate_or_the_default() {
    for (tokens, rate, worker_ms) in [
        (0, None, 0),
        (1, None, 1),
        (2_000, None, 2_000),
        (2_000, Some(0), 2_000),
        (2_000, Some(4_000), 500),
        (1, Some(4_000), 1),
    ] {
        let due = DueWork::of_tokens(tokens, rate, UnixMs(0));
        assert_eq!(due.worker_ms, worker_ms, "{tokens} at {rate:?}");
    }
}

#[test]
fn demand_sums_up_its_work() {
    let demand = demand("a", &[(9, 1_001), (4, 1_000)]);
    assert_eq!(demand.worker_seconds(), 3);
    assert_eq!(demand.nearest_deadline(), Some(UnixMs(4)));
    assert_eq!(Demand::default().nearest_deadline(), None);
}

fn works() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let deadline = -HOUR_MS..48 * HOUR_MS;
    proptest::collection::vec((deadline, 0..1_000_000_000_u64), 0..8)
}

proptest! {
    #[test]
    fn more_work_never_wants_fewer(work in works(), more in works(), now in 0..HOUR_MS) {
        let all: Vec<(i64, u64)> = work.iter().chain(&more).copied().collect();
        let (few, many) = (demand("a", &work), demand("a", &all));
        prop_assert!(wanted(&[few], 0, 1_000, now) <= wanted(&[many], 0, 1_000, now));
    }

    #[test]
    fn longer_work_never_wants_fewer(work in works(), factor in 1..4_u64, now in 0..HOUR_MS) {
        let longer: Vec<(i64, u64)> = work.iter().map(|(at, ms)| (*at, ms * factor)).collect();
        let (short, long) = (demand("a", &work), demand("a", &longer));
        prop_assert!(wanted(&[short], 0, 1_000, now) <= wanted(&[long], 0, 1_000, now));
    }

    #[test]
    fn more_time_never_wants_more(work in works(), now in 0..HOUR_MS, span in 0..HOUR_MS) {
        let demands = [demand("a", &work)];
        prop_assert!(wanted(&demands, 0, 1_000, now) <= wanted(&demands, 0, 1_000, now + span));
    }

    #[test]
    fn none_are_wanted_only_if_nothing_waits(work in works(), min in 0..3_u32, now in 0..HOUR_MS) {
        let waits = work.iter().any(|(_, worker_ms)| *worker_ms > 0);
        let is_zero = wanted(&[demand("a", &work)], min, 1_000, now) == 0;
        prop_assert_eq!(is_zero, !waits && min == 0);
    }
}
