use std::collections::BTreeSet;
use std::time::Duration;

use batch_core::batch::TokenCounts;
use batch_core::limits::{SERVER_BUSY_RETRIES_MAX, SERVER_RETRIES_MAX};
use proptest::prelude::*;

use super::*;
use crate::http::letter::{self, tests::job};
use crate::http::retry::Trouble;
use crate::openai::LineError;
use crate::pipeline::{Answered, LineFault};

fn letter(key: u64, urgent: bool) -> Letter {
    letter::write(job(key, r#"{"model":"m"}"#), urgent, "m").expect("it is sendable")
}

fn good() -> Verdict {
    Verdict::Final(Ok(Answered {
        status: 200,
        body: "{}".to_owned(),
        tokens: TokenCounts::default(),
    }))
}

fn fault() -> LineFault {
    LineFault::Line(LineError::server("no", "no"))
}

fn again(trouble: Trouble, wait_s: Option<u64>) -> Verdict {
    Verdict::Again {
        trouble,
        wait: wait_s.map(Duration::from_secs),
        fault: fault(),
    }
}

fn desk_of(lines: u64) -> Desk {
    let mut desk = Desk::new(256);
    (1..=lines).for_each(|key| desk.add(letter(key, false)));
    desk
}

/// Takes out what may be sent now.
fn sent(desk: &mut Desk, now: Instant) -> Vec<u64> {
    let letters = std::iter::from_fn(|| match desk.next(now) {
        Next::Send(letter) => Some(letter.key.0),
        Next::WaitUntil(_) | Next::Wait => None,
    });
    letters.collect()
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn lines_are_sent_in_order_and_within_the_pace() {
    let start = Instant::now();
    let mut desk = desk_of(20);
    assert_eq!(sent(&mut desk, start), (1..=8).collect::<Vec<_>>());
    assert!(desk.judged(LineKey(3), good(), start, 0.5).is_some());
    assert_eq!(sent(&mut desk, start), [9, 10]);
    assert_eq!(desk.lines(), 19);
}

#[test]
fn urgent_lines_take_three_starts_of_four() {
    let mut desk = Desk::new(8);
    (1..=6).for_each(|key| desk.add(letter(key, false)));
    (11..=15).for_each(|key| desk.add(letter(key, true)));
    let order = sent(&mut desk, Instant::now());
    assert_eq!(order, [11, 12, 13, 1, 14, 15, 2, 3]);
}

#[test]
fn nothing_is_sent_while_the_server_wants_its_peace() {
    let start = Instant::now();
    let mut desk = desk_of(20);
    sent(&mut desk, start);
    let limited = again(Trouble::RateLimited, Some(30));
    assert!(
        desk.judged(LineKey(1), limited, start + s(1), 0.0)
            .is_none()
    );
    assert!(desk.judged(LineKey(2), good(), start + s(2), 0.0).is_some());
    assert_eq!(desk.limit(), 4);
    assert!(matches!(desk.next(start + s(30)), Next::WaitUntil(at) if at == start + s(31)));
    for key in 3..=8 {
        desk.judged(LineKey(key), good(), start + s(30), 0.0);
    }
    assert_eq!(sent(&mut desk, start + s(31)), [1, 9, 10, 11]);
}

#[test]
fn line_waits_for_its_retry_while_others_go_on() {
    let start = Instant::now();
    let mut desk = desk_of(3);
    sent(&mut desk, start);
    let failed = again(Trouble::Failed, None);
    assert!(desk.judged(LineKey(2), failed, start, 1.0).is_none());
    desk.add(letter(4, false));
    assert_eq!(sent(&mut desk, start), [4]);
    let due = start + Duration::from_millis(500);
    assert!(matches!(desk.next(start), Next::WaitUntil(at) if at == due));
    assert_eq!(sent(&mut desk, due), [2]);
    assert_eq!(desk.limit(), 8);
}

#[test]
fn server_that_strains_again_and_again_is_left_alone_longer_and_longer() {
    let start = Instant::now();
    let mut now = start;
    let mut desk = desk_of(1_000);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        let keys = sent(&mut desk, now);
        let later = now + Duration::from_millis(1);
        for key in keys {
            desk.judged(LineKey(key), again(Trouble::RateLimited, None), later, 1.0);
        }
        let Next::WaitUntil(until) = desk.next(later) else {
            panic!("it does not wait");
        };
        pauses.push((until - later).as_millis());
        now = until;
    }
    let doubling = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000];
    assert_eq!(pauses[..7], doubling);
    assert_eq!(pauses[7..], [60_000; 3]);
    assert_eq!(desk.limit(), 1);
}

#[test]
fn cancelled_line_is_neither_sent_nor_answered() {
    let start = Instant::now();
    let mut desk = desk_of(20);
    sent(&mut desk, start);
    let failed = again(Trouble::Failed, None);
    desk.judged(LineKey(2), failed, start, 1.0);
    for key in [1, 2, 15] {
        desk.cancel(LineKey(key));
    }
    assert!(desk.judged(LineKey(1), good(), start, 0.0).is_none());
    let mut seen = BTreeSet::new();
    while desk.lines() > 0 {
        seen.extend(sent(&mut desk, start + s(60)));
        let key = *desk.sent.keys().next().expect("one is in flight");
        desk.judged(key, good(), start + s(60), 0.0);
    }
    let expected: BTreeSet<u64> = (9..=20).filter(|key| *key != 15).collect();
    assert_eq!(seen, expected);
}

#[test]
fn health_is_in_doubt_after_three_troubles_in_a_row() {
    let start = Instant::now();
    let mut desk = desk_of(20);
    sent(&mut desk, start);
    let mut doubts = Vec::new();
    for (key, verdict) in [
        (1, again(Trouble::Unreachable, None)),
        (2, again(Trouble::Failed, None)),
        (3, again(Trouble::RateLimited, None)),
        (4, good()),
        (5, again(Trouble::Unavailable, None)),
        (6, again(Trouble::Strained, None)),
        (7, again(Trouble::Unreachable, None)),
    ] {
        desk.judged(LineKey(key), verdict, start, 1.0);
        doubts.push(desk.is_in_doubt());
    }
    assert_eq!(doubts, [false, false, false, false, false, false, true]);
    assert!(sent(&mut desk, start + s(60)).is_empty());
    desk.found_healthy();
    assert!(!desk.is_in_doubt());
    assert!(!sent(&mut desk, start + s(60)).is_empty());
}

#[derive(Debug, Clone, Copy)]
enum Does {
    Good,
    Refuse,
    Again(Trouble, Option<u64>),
}

fn does() -> impl Strategy<Value = Does> {
    let trouble = prop_oneof![
        Just(Trouble::RateLimited),
        Just(Trouble::Unavailable),
        Just(Trouble::Unreachable),
        Just(Trouble::Strained),
        Just(Trouble::Failed),
    ];
    prop_oneof![
        2 => Just(Does::Good),
        1 => Just(Does::Refuse),
        3 => (trouble, prop::option::of(0_u64..30)).prop_map(|(t, wait)| Does::Again(t, wait)),
    ]
}

proptest! {
    /// Whatever the server does, each line gets one result, no line is sent too often, and the pace is kept.
    #[test]
    fn every_line_gets_exactly_one_result(
        lines in 1_u64..40,
        max in 1_u32..16,
        script in prop::collection::vec((does(), 0.0_f64..1.0, 0_u64..3_000), 1..200),
    ) {
        let mut now = Instant::now();
        let mut desk = Desk::new(max);
        (1..=lines).for_each(|key| desk.add(letter(key, key % 3 == 0)));
        let mut answered = BTreeSet::new();
        let mut sends = BTreeMap::<u64, u32>::new();
        let mut script = script.into_iter().cycle();
        let mut in_flight = VecDeque::new();
        while desk.lines() > 0 {
            match desk.next(now) {
                Next::Send(letter) => {
                    *sends.entry(letter.key.0).or_default() += 1;
                    in_flight.push_back(letter.key);
                    prop_assert!(in_flight.len() <= desk.limit().min(max as usize));
                    prop_assert!(!answered.contains(&letter.key.0));
                    continue;
                }
                Next::WaitUntil(until) if in_flight.is_empty() => {
                    prop_assert!(until > now);
                    now = until;
                    continue;
                }
                Next::Wait if in_flight.is_empty() => {
                    prop_assert!(desk.is_in_doubt());
                    desk.found_healthy();
                    continue;
                }
                Next::WaitUntil(_) | Next::Wait => {}
            }
            let key = in_flight.pop_front().expect("lines are left, so one is in flight or waits");
            let (what, draw, ms) = script.next().expect("it is a cycle");
            now += Duration::from_millis(ms);
            let verdict = match what {
                Does::Good => good(),
                Does::Refuse => Verdict::Final(Err(fault())),
                Does::Again(trouble, wait) => again(trouble, wait),
            };
            if let Some(answer) = desk.judged(key, verdict, now, draw) {
                prop_assert_eq!(answer.key, key);
                prop_assert!(answered.insert(key.0));
            }
        }
        prop_assert_eq!(answered.len() as u64, lines);
        let most = 1 + SERVER_RETRIES_MAX + SERVER_BUSY_RETRIES_MAX;
        prop_assert!(sends.values().all(|count| *count <= most));
    }
}
