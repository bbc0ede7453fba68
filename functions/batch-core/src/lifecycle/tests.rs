use std::fmt::Write;

use expect_test::expect_file;

use super::*;
use crate::batch::{BatchParams, BatchRun, Endpoint, LineCounts, Moments, StageLease, TokenCounts};
use crate::id::{BatchId, TenantId};
use crate::settings::Timing;

const STATES: [State; 11] = [
    State::Validating,
    State::InProgress,
    State::Draining(Stop::Cancelled),
    State::Draining(Stop::Expired),
    State::Sealed(SealedAs::Completed),
    State::Sealed(SealedAs::Cancelled),
    State::Sealed(SealedAs::Expired),
    State::Ended(Terminal::Completed),
    State::Ended(Terminal::Failed),
    State::Ended(Terminal::Expired),
    State::Ended(Terminal::Cancelled),
];

const EVENTS: [Event; 8] = [
    Event::Published {
        total: 7,
        shards_total: 2,
    },
    Event::Published {
        total: 0,
        shards_total: 0,
    },
    Event::Rejected,
    Event::CancelRequested,
    Event::WindowClosed,
    Event::AllShardsDone,
    Event::GraceOver,
    Event::Finalized,
];

const NOW: UnixMs = UnixMs(1_000);
const GRACE_MS: i64 = 50;

fn all_steps() -> impl Iterator<Item = (State, Event, Result<Step, Rejected>)> {
    STATES
        .into_iter()
        .flat_map(|state| EVENTS.map(|event| (state, event, state.on(event, NOW, GRACE_MS))))
}

#[test]
fn every_event_in_every_state_is_in_the_table() {
    let mut table = String::new();
    let mut last = None;
    for (state, event, step) in all_steps() {
        if last.replace(state) != Some(state) {
            let status = serde_json::to_value(state.status()).unwrap();
            writeln!(table, "\n{state} [{}]", status.as_str().unwrap()).unwrap();
        }
        write!(table, "  {:<32}", event.to_string()).unwrap();
        match step {
            Ok(Step {
                next,
                effects,
                changed: true,
            }) => writeln!(table, "{next}  {effects:?}").unwrap(),
            Ok(_) => writeln!(table, "-").unwrap(),
            Err(Rejected { .. }) => writeln!(table, "rejected").unwrap(),
        }
    }
    expect_file!["../../golden/lifecycle.txt"].assert_eq(table.trim_start());
}

#[test]
fn unchanged_steps_have_no_effects_and_changed_ones_change() {
    for (state, event, step) in all_steps() {
        if let Ok(Step {
            next,
            effects,
            changed,
        }) = step
        {
            assert_eq!(changed, next != state, "{state} on {event}");
            assert!(changed || effects.is_empty(), "{state} on {event}");
        }
    }
}

#[test]
fn every_effect_can_be_derived_from_the_state_when_it_got_lost() {
    for (state, event, step) in all_steps() {
        for effect in step.map_or(Vec::new(), |step| {
            let pending = pending_effects(step.next, Some(NOW.plus_ms(GRACE_MS)));
            step.effects
                .into_iter()
                .map(|effect| (effect, pending.clone()))
                .collect()
        }) {
            let (effect, pending) = effect;
            assert!(pending.contains(&effect), "{state} on {event}: {effect:?}");
        }
    }
}

#[test]
fn repeated_event_changes_nothing_more() {
    for (state, event, step) in all_steps() {
        let Ok(Step { next, .. }) = step else {
            continue;
        };
        if let Ok(again) = next.on(event, NOW, GRACE_MS) {
            assert!(!again.changed, "{state} on {event} twice");
        }
    }
}

#[test]
fn states_never_go_back() {
    let phase = |state| match state {
        State::Validating => 0,
        State::InProgress => 1,
        State::Draining(_) => 2,
        State::Sealed(_) => 3,
        State::Ended(_) => 4,
    };
    for (state, event, step) in all_steps() {
        let Ok(Step { next, changed, .. }) = step else {
            continue;
        };
        assert!(phase(next) >= phase(state), "{state} on {event}");
        assert!(!(changed && state.is_terminal()), "{state} on {event}");
    }
}

#[test]
fn every_batch_ends_when_time_passes_and_stages_answer() {
    for start in STATES {
        let (mut state, mut steps) = (start, 0);
        while !state.is_terminal() {
            let event = match state {
                State::Validating | State::InProgress => Event::WindowClosed,
                State::Draining(_) => Event::GraceOver,
                State::Sealed(_) => Event::Finalized,
                State::Ended(_) => break,
            };
            state = state.on(event, NOW, GRACE_MS).unwrap().next;
            steps += 1;
            assert!(steps <= 3, "{start}");
        }
    }
}

#[test]
fn rejection_names_state_and_event() {
    let rejected = State::Ended(Terminal::Completed)
        .on(Event::CancelRequested, NOW, GRACE_MS)
        .unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "cancel requested does not apply to a batch that is completed"
    );
}

fn batch(state: State) -> (BatchParams, BatchRun) {
    let params = BatchParams {
        id: BatchId::new(UnixMs(0), [0; 16]),
        tenant: TenantId::default_tenant(),
        endpoint: Endpoint::ChatCompletions,
        input_file_id: String::new(),
        completion_window: "24h".to_owned(),
        expires_at: UnixMs(86_400_000),
        created_at: UnixMs(0),
        metadata: None,
        output_expires_after: None,
        input_bytes: None,
        prices: std::collections::BTreeMap::new(),
        rates: std::collections::BTreeMap::new(),
        creation: None,
        schema: 1,
    };
    let run = BatchRun {
        state,
        seal_at: matches!(state, State::Draining(_)).then_some(UnixMs(5_000)),
        stage: StageLease::default(),
        models: Vec::new(),
        counts: LineCounts::default(),
        shards_total: 2,
        shards_done: 1,
        windows: 1,
        tokens: TokenCounts::default(),
        cost_picodollars: 0,
        estimated_tokens: 0,
        moments: Moments {
            in_progress_at: Some(UnixMs(10)),
            ..Moments::default()
        },
        output_file_id: None,
        error_file_id: None,
        manifest: None,
        saved_place: None,
    };
    (params, run)
}

#[test]
fn reconcile_looks_when_something_can_have_gone_wrong() {
    let timing = Timing {
        message_lost_ms: 30_000,
        takeover_ms: 100,
        ..Timing::EMBEDDED
    };
    let check = |state, change: fn(&mut BatchRun), want: Option<i64>| {
        let (params, mut run) = batch(state);
        change(&mut run);
        assert_eq!(
            next_look(&run, &params, &timing),
            want.map(UnixMs),
            "{state}"
        );
    };
    check(State::Validating, |_| {}, Some(30_000));
    check(
        State::Validating,
        |run| run.stage.until = UnixMs(40_000),
        Some(40_100),
    );
    // Whoever answered the message has died: that the message may be lost says nothing any more.
    check(
        State::Validating,
        |run| run.stage.until = UnixMs(2_000),
        Some(2_100),
    );
    check(
        State::Validating,
        |run| run.stage.until = UnixMs(99_000_000),
        Some(86_400_000),
    );
    check(State::InProgress, |_| {}, Some(86_400_000));
    check(State::InProgress, |run| run.shards_done = 2, Some(10));
    check(State::Draining(Stop::Expired), |_| {}, Some(5_000));
    check(
        State::Sealed(SealedAs::Completed),
        |run| run.moments.finalizing_at = Some(UnixMs(7_000)),
        Some(37_000),
    );
    check(
        State::Sealed(SealedAs::Expired),
        |run| run.stage.until = UnixMs(50_000),
        Some(50_100),
    );
    check(
        State::Sealed(SealedAs::Completed),
        |run| {
            run.moments.finalizing_at = Some(UnixMs(7_000));
            run.stage.until = UnixMs(9_000);
        },
        Some(9_100),
    );
    check(
        State::Sealed(SealedAs::Completed),
        |run| {
            run.moments.finalizing_at = Some(UnixMs(7_000));
            run.stage.until = UnixMs(6_900);
        },
        Some(37_000),
    );
    check(State::Ended(Terminal::Failed), |_| {}, None);
}

#[test]
fn due_events_are_never_rejected() {
    for state in STATES {
        for (shards_done, now) in [(0, 0), (2, 0), (0, 5_000), (0, 86_400_000), (2, 86_400_000)] {
            let (params, mut run) = batch(state);
            run.shards_done = shards_done;
            let due = due_event(&run, &params, UnixMs(now));
            assert!(
                due.is_none_or(|event| state.on(event, NOW, GRACE_MS).is_ok()),
                "{state} at {now}"
            );
        }
    }
}

#[test]
fn time_closes_windows_and_graces() {
    let check = |state, shards_done, now, want: Option<Event>| {
        let (params, mut run) = batch(state);
        run.shards_done = shards_done;
        assert_eq!(
            due_event(&run, &params, UnixMs(now)),
            want,
            "{state} at {now}"
        );
    };
    check(State::Validating, 0, 86_399_999, None);
    check(State::Validating, 0, 86_400_000, Some(Event::WindowClosed));
    check(State::InProgress, 1, 86_399_999, None);
    check(State::InProgress, 1, 86_400_000, Some(Event::WindowClosed));
    check(State::InProgress, 2, 86_400_000, Some(Event::AllShardsDone));
    check(State::Draining(Stop::Cancelled), 1, 4_999, None);
    check(
        State::Draining(Stop::Cancelled),
        1,
        5_000,
        Some(Event::GraceOver),
    );
    check(
        State::Draining(Stop::Cancelled),
        2,
        4_999,
        Some(Event::AllShardsDone),
    );
    check(State::Sealed(SealedAs::Completed), 2, 86_400_000, None);
}
