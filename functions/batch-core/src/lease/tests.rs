use std::collections::BTreeSet;

use super::*;
use crate::id::WorkerId;

pub(super) const TIMING: Timing = Timing {
    lease_ms: 10,
    takeover_ms: 2,
    message_lost_ms: 100,
    commit_ms: 5,
    ..Timing::EMBEDDED
};

pub(super) fn worker(number: u8) -> WorkerId {
    WorkerId::new(UnixMs(0), [number; 16])
}

pub(super) fn shard(state: ShardState) -> Shard {
    Shard {
        id: ShardId::root(0, 3),
        model: "m".to_owned(),
        window: 1,
        lines: 4,
        estimated_tokens: 400,
        subset: None,
        state,
        epoch: 7,
        losses: 0,
        alone: false,
        segments: vec![SegmentRef {
            epoch: 7,
            number: 0,
        }],
    }
}

fn leased(until: i64) -> Shard {
    shard(ShardState::Leased {
        owner: worker(1),
        until: UnixMs(until),
    })
}

pub(super) fn released_at(check_at: i64) -> ShardState {
    ShardState::Released {
        check_at: UnixMs(check_at),
    }
}

#[test]
fn claim_depends_on_state_and_time() {
    let check = |shard: Shard, now, want| {
        assert_eq!(
            claim(&shard, worker(2), UnixMs(now), &TIMING),
            want,
            "{shard:?}"
        )
    };
    check(shard(ShardState::Pending), 0, Claim::NotYet);
    check(shard(ShardState::Done), 0, Claim::Finished);
    check(shard(ShardState::Split), 0, Claim::Finished);
    check(leased(10), 11, Claim::Busy { until: UnixMs(12) });
    let held = ShardState::Leased {
        owner: worker(2),
        until: UnixMs(22),
    };
    check(
        leased(10),
        12,
        Claim::Granted(Shard {
            epoch: 8,
            losses: 1,
            ..shard(held)
        }),
    );
    check(
        shard(released_at(0)),
        12,
        Claim::Granted(Shard {
            epoch: 8,
            losses: 0,
            ..shard(held)
        }),
    );
    check(
        Shard {
            losses: 1,
            ..leased(10)
        },
        12,
        Claim::Granted(Shard {
            epoch: 8,
            losses: 2,
            ..shard(held)
        }),
    );
    check(
        Shard {
            losses: 2,
            ..leased(10)
        },
        12,
        Claim::NotYet,
    );
}

#[test]
fn commit_keeps_segments_and_renews() {
    let segment = SegmentRef {
        epoch: 7,
        number: 1,
    };
    let next = commit(&leased(10), 7, Some(segment), false, UnixMs(50), &TIMING).unwrap();
    assert_eq!(
        next,
        Shard {
            segments: vec![
                SegmentRef {
                    epoch: 7,
                    number: 0
                },
                segment
            ],
            ..leased(60)
        }
    );
    assert_eq!(
        commit(&next, 7, Some(segment), false, UnixMs(50), &TIMING),
        Ok(next.clone()),
        "sent again"
    );
    let done = commit(&next, 7, None, true, UnixMs(50), &TIMING).unwrap();
    assert_eq!(
        done,
        Shard {
            state: ShardState::Done,
            ..next
        }
    );
}

#[test]
fn stale_holder_is_fenced() {
    let fenced = Err(Fenced { held: 6, now: 7 });
    assert_eq!(
        commit(&leased(10), 6, None, false, UnixMs(0), &TIMING),
        fenced
    );
    assert_eq!(hand_back(&leased(10), 6, UnixMs(0), &TIMING), fenced);
    for state in [
        ShardState::Pending,
        released_at(0),
        ShardState::Done,
        ShardState::Split,
    ] {
        assert_eq!(
            commit(&shard(state), 7, None, true, UnixMs(0), &TIMING),
            Err(Fenced { held: 7, now: 7 })
        );
        assert_eq!(
            hand_back(&shard(state), 7, UnixMs(0), &TIMING),
            Err(Fenced { held: 7, now: 7 })
        );
    }
    let foreign = Some(SegmentRef {
        epoch: 6,
        number: 0,
    });
    assert_eq!(
        commit(&leased(10), 7, foreign, false, UnixMs(0), &TIMING),
        Err(Fenced { held: 7, now: 7 })
    );
    assert_eq!(
        Fenced { held: 6, now: 7 }.to_string(),
        "shard is at epoch 7, not leased at 6"
    );
}

#[test]
fn hand_back_is_no_loss() {
    let next = hand_back(
        &Shard {
            losses: 2,
            ..leased(10)
        },
        7,
        UnixMs(5),
        &TIMING,
    );
    assert_eq!(
        next,
        Ok(Shard {
            epoch: 8,
            losses: 2,
            ..shard(released_at(105))
        })
    );
}

#[test]
fn lapse_is_a_loss_and_three_are_too_many() {
    let check = |shard: Shard, dead, want| {
        assert_eq!(lapse(&shard, dead, UnixMs(12), &TIMING), want, "{shard:?}")
    };
    check(leased(11), false, Lapse::StillHeld { until: UnixMs(13) });
    let released = |losses| Shard {
        epoch: 8,
        losses,
        ..shard(released_at(112))
    };
    check(
        leased(11),
        true,
        Lapse::Release {
            next: released(1),
            delay_ms: 0,
        },
    );
    check(
        leased(10),
        false,
        Lapse::Release {
            next: released(1),
            delay_ms: 0,
        },
    );
    check(
        Shard {
            losses: 1,
            ..leased(10)
        },
        false,
        Lapse::Release {
            next: released(2),
            delay_ms: 0,
        },
    );
    check(
        Shard {
            losses: 2,
            ..leased(10)
        },
        false,
        Lapse::Split,
    );
    for state in [
        ShardState::Pending,
        released_at(0),
        ShardState::Done,
        ShardState::Split,
    ] {
        check(shard(state), true, Lapse::NotHeld);
    }
}

#[test]
fn lone_line_backs_off_and_is_given_up_at_last() {
    let lone = |losses, until| Shard {
        subset: Some(vec![2]),
        lines: 1,
        alone: true,
        losses,
        ..leased(until)
    };
    for (losses, delay_ms) in [(0, 10), (1, 20)] {
        let state = released_at(12 + delay_ms + 100);
        let next = Shard {
            epoch: 8,
            losses: losses + 1,
            state,
            ..lone(losses, 0)
        };
        assert_eq!(
            lapse(&lone(losses, 10), false, UnixMs(12), &TIMING),
            Lapse::Release { next, delay_ms }
        );
    }
    let held = Shard {
        epoch: 8,
        losses: 3,
        ..lone(2, 12 + TIMING.lease_ms)
    };
    assert_eq!(
        lapse(&lone(2, 10), false, UnixMs(12), &TIMING),
        Lapse::GiveUp { held }
    );
}

#[test]
fn line_that_is_given_up_is_done_with_its_error_line_as_the_only_new_segment() {
    let lone = Shard {
        subset: Some(vec![2]),
        lines: 1,
        alone: true,
        losses: 2,
        ..leased(10)
    };
    let Lapse::GiveUp { held } = lapse(&lone, true, UnixMs(5), &TIMING) else {
        panic!("not given up")
    };
    let Claim::Busy { .. } = claim(&held, worker(2), UnixMs(6), &TIMING) else {
        panic!("another may claim it")
    };
    assert!(commit(&lone, held.epoch, None, true, UnixMs(6), &TIMING).is_err());
    let segment = SegmentRef {
        epoch: held.epoch,
        number: 0,
    };
    let done = commit(&held, held.epoch, Some(segment), true, UnixMs(6), &TIMING).unwrap();
    assert_eq!(done.state, ShardState::Done);
    assert_eq!(done.segments, [lone.segments, vec![segment]].concat());
}

#[test]
fn split_halves_the_unfinished_lines_and_keeps_the_results() {
    let shard = Shard {
        losses: 2,
        ..leased(10)
    };
    let Split::Halves { parent, children } = split(&shard, &[0, 2, 3], UnixMs(0), &TIMING) else {
        panic!()
    };
    assert_eq!(
        parent,
        Shard {
            state: ShardState::Split,
            epoch: 8,
            ..shard.clone()
        }
    );
    let child = |id: &str, subset: &[u32], estimated_tokens| Shard {
        id: id.parse().unwrap(),
        lines: u32::try_from(subset.len()).unwrap(),
        estimated_tokens,
        subset: Some(subset.to_vec()),
        state: released_at(100),
        epoch: 0,
        losses: 0,
        alone: subset.len() == 1,
        segments: Vec::new(),
        ..shard.clone()
    };
    assert_eq!(
        children,
        [
            child("000-000003.0", &[0], 100),
            child("000-000003.1", &[2, 3], 200)
        ]
    );
}

#[test]
fn split_makes_no_children_when_at_most_one_line_is_left() {
    let shard = Shard {
        losses: 2,
        ..leased(10)
    };
    let done = Shard {
        state: ShardState::Done,
        epoch: 8,
        ..shard.clone()
    };
    assert_eq!(split(&shard, &[], UnixMs(0), &TIMING), Split::Done(done));
    let alone = Shard {
        lines: 1,
        estimated_tokens: 100,
        subset: Some(vec![3]),
        state: released_at(100),
        epoch: 8,
        losses: 0,
        alone: true,
        ..shard.clone()
    };
    assert_eq!(split(&shard, &[3], UnixMs(0), &TIMING), Split::Alone(alone));
}

#[test]
fn every_line_is_given_up_after_a_bounded_number_of_deaths() {
    // Every worker dies at once, whatever it runs: all lines must come to an end.
    let mut open = vec![shard(released_at(0))];
    let mut ended = BTreeSet::new();
    let mut deaths = 0;
    while let Some(shard) = open.pop() {
        let Claim::Granted(held) = claim(&shard, worker(1), UnixMs(0), &TIMING) else {
            panic!("{shard:?}")
        };
        deaths += 1;
        match lapse(&held, true, UnixMs(0), &TIMING) {
            Lapse::Release { next, .. } => open.push(next),
            Lapse::Split => {
                let lines = held
                    .subset
                    .clone()
                    .unwrap_or_else(|| (0..held.lines).collect());
                match split(&held, &lines, UnixMs(0), &TIMING) {
                    Split::Halves { children, .. } => open.extend(children),
                    Split::Alone(next) => open.push(next),
                    Split::Done(_) => panic!("lines were left"),
                }
            }
            Lapse::GiveUp { held } => {
                let [line] = held.subset.as_deref().unwrap() else {
                    panic!("{held:?}")
                };
                assert!(ended.insert(*line));
            }
            Lapse::NotHeld | Lapse::StillHeld { .. } => panic!("it was held"),
        }
        assert!(deaths <= 100);
    }
    assert_eq!(ended, BTreeSet::from([0, 1, 2, 3]));
}
