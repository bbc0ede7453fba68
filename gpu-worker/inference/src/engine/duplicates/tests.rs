use super::*;
use crate::backend::SampleParams;
use crate::engine::{FinishReason, Request, RequestFailure};

/// A greedy request.
pub(super) fn request(id: u64, prompt: &[u32]) -> Request {
    Request {
        id: RequestId(id),
        prompt: prompt.into(),
        salt: 0,
        urgent: false,
        seed: id,
        choice: id as u32,
        max_tokens: 4,
        params: SampleParams::GREEDY,
        logit_bias: vec![],
        logprobs: None,
        stop: vec![],
        stop_tokens: Arc::from([2]),
        ignore_eos: false,
    }
}

fn finished(prompt_tokens: u32) -> Outcome {
    Outcome::Finished(Generation {
        text: "answer".to_owned(),
        tokens: vec![7, 8],
        logprobs: None,
        finish_reason: FinishReason::Stop,
        prompt_tokens,
        cached_tokens: 1,
        completion_tokens: 2,
    })
}

fn cached_tokens(outcome: &Outcome) -> u32 {
    match outcome {
        Outcome::Finished(generation) => generation.cached_tokens,
        Outcome::Failed(failure) => panic!("{failure}"),
    }
}

/// Asks a question as the engine does, and returns the sequence that the request waits for.
fn ask(duplicates: &mut Duplicates, request: &Request) -> Option<SequenceId> {
    match duplicates.ask(request.id, Question::of(request)) {
        Asked::Answered(_) => None,
        Asked::Joined(sequence) => Some(sequence),
        Asked::New(question) => {
            let sequence = duplicates.next_sequence();
            duplicates.open(request.id, question);
            Some(sequence)
        }
    }
}

/// Returns whether both requests wait for one sequence.
fn share(left: &Request, right: &Request) -> bool {
    let mut duplicates = Duplicates::new(true);
    ask(&mut duplicates, left) == ask(&mut duplicates, right)
}

#[test]
fn whatever_changes_the_result_is_a_question_of_its_own() {
    let one = || request(1, &[5, 6]);
    let two = || request(2, &[5, 6]);
    assert!(share(&one(), &two()), "seed and choice do not matter");
    let params = |change: fn(&mut SampleParams)| {
        let mut request = two();
        change(&mut request.params);
        request
    };
    let others = [
        request(2, &[5, 7]),
        Request { salt: 1, ..two() },
        Request {
            max_tokens: 5,
            ..two()
        },
        Request {
            logprobs: Some(0),
            ..two()
        },
        Request {
            logit_bias: vec![(1, 0.5)],
            ..two()
        },
        Request {
            stop: vec![b"x".to_vec()],
            ..two()
        },
        Request {
            stop_tokens: Arc::from([3]),
            ..two()
        },
        Request {
            ignore_eos: true,
            ..two()
        },
        params(|params| params.temperature = 0.1),
        params(|params| params.repetition_penalty = 1.1),
        params(|params| params.frequency_penalty = 0.1),
        params(|params| params.presence_penalty = 0.1),
    ];
    for other in others {
        assert!(!share(&one(), &other), "{other:?}");
    }
}

#[test]
fn what_does_not_reach_the_result_does_not_part_requests() {
    let params = SampleParams {
        top_p: 0.5,
        top_k: 3,
        min_p: 0.1,
        ..SampleParams::GREEDY
    };
    assert!(share(
        &request(1, &[5]),
        &Request {
            params,
            urgent: true,
            ..request(2, &[5])
        }
    ));
    let ignoring = |id, stop_token| Request {
        ignore_eos: true,
        stop_tokens: Arc::from([stop_token]),
        ..request(id, &[5])
    };
    assert!(share(&ignoring(1, 2), &ignoring(2, 3)));
    let biased = |id, logit_bias| Request {
        logit_bias,
        ..request(id, &[5])
    };
    let sorted = biased(1, vec![(1, 0.5), (2, 1.0)]);
    assert!(share(&sorted, &biased(2, vec![(2, 1.0), (1, 0.5)])));
    // What is added to one token is rounded after each step.
    let twice = biased(1, vec![(1, 0.5), (1, 1e9)]);
    assert!(!share(&twice, &biased(2, vec![(1, 1e9), (1, 0.5)])));
}

#[test]
fn draws_are_shared_only_by_requests_with_the_same_stream() {
    let drawn = |id, seed, choice, temperature| Request {
        seed,
        choice,
        params: SampleParams {
            temperature,
            ..SampleParams::GREEDY
        },
        ..request(id, &[5])
    };
    assert!(share(&drawn(1, 9, 0, 0.7), &drawn(2, 9, 0, 0.7)));
    assert!(!share(&drawn(1, 9, 0, 0.7), &drawn(2, 8, 0, 0.7)));
    assert!(!share(&drawn(1, 9, 0, 0.7), &drawn(2, 9, 1, 0.7)));
    assert!(!share(&drawn(1, 9, 0, 0.7), &drawn(2, 9, 0, 0.8)));
}

#[test]
fn copies_get_the_result_and_their_whole_prompt_counts_as_cached() {
    let mut duplicates = Duplicates::new(true);
    let sequence = ask(&mut duplicates, &request(1, &[5; 9])).expect("a sequence");
    for id in 2..4 {
        assert_eq!(ask(&mut duplicates, &request(id, &[5; 9])), Some(sequence));
    }
    let outcomes = duplicates.close(sequence, finished(9));
    let cached = outcomes.map(|(id, outcome)| (id.0, cached_tokens(&outcome)));
    assert_eq!(cached.collect::<Vec<_>>(), [(1, 1), (2, 9), (3, 9)]);
    assert!(duplicates.is_idle());
    // Later, too.
    let late = request(4, &[5; 9]);
    let Asked::Answered(generation) = duplicates.ask(late.id, Question::of(&late)) else {
        panic!("the result is not kept")
    };
    assert_eq!(
        (generation.text.as_str(), generation.cached_tokens),
        ("answer", 9)
    );
    let saved = Saved {
        requests: 3,
        tokens: 3 * 11,
    };
    assert_eq!(duplicates.saved(), saved);
}

#[test]
fn failure_reaches_all_who_wait_and_is_computed_again_for_the_next() {
    let mut duplicates = Duplicates::new(true);
    let sequence = ask(&mut duplicates, &request(1, &[5])).expect("a sequence");
    ask(&mut duplicates, &request(2, &[5]));
    let failed = Outcome::Failed(RequestFailure::NotFinite);
    let outcomes: Vec<_> = duplicates.close(sequence, failed.clone()).collect();
    assert_eq!(
        outcomes,
        [(RequestId(1), failed.clone()), (RequestId(2), failed)]
    );
    assert_ne!(ask(&mut duplicates, &request(3, &[5])), Some(sequence));
}

#[test]
fn sequence_goes_on_while_anybody_waits_for_it() {
    let mut duplicates = Duplicates::new(true);
    let sequence = ask(&mut duplicates, &request(1, &[5])).expect("a sequence");
    for id in 2..4 {
        ask(&mut duplicates, &request(id, &[5]));
    }
    assert_eq!(duplicates.leave(RequestId(1)), None);
    assert_eq!(duplicates.leave(RequestId(3)), None);
    let outcomes: Vec<_> = duplicates.close(sequence, finished(9)).collect();
    let [(RequestId(2), outcome)] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert_eq!(cached_tokens(outcome), 1, "the heir is charged");

    let other = ask(&mut duplicates, &request(4, &[6]));
    assert_eq!(duplicates.leave(RequestId(4)), other);
    assert_eq!(duplicates.leave(RequestId(4)), None, "it is gone");
    assert_ne!(ask(&mut duplicates, &request(5, &[6])), other);
}

#[test]
fn switched_off_every_request_has_a_sequence_of_its_own() {
    let mut duplicates = Duplicates::new(false);
    let first = ask(&mut duplicates, &request(1, &[5])).expect("a sequence");
    let second = ask(&mut duplicates, &request(2, &[5])).expect("a sequence");
    assert_ne!(first, second);
    assert_eq!(duplicates.close(second, finished(1)).count(), 1);
    assert_eq!(duplicates.close(first, finished(1)).count(), 1);
    assert!(ask(&mut duplicates, &request(3, &[5])).is_some());
    assert_eq!(duplicates.saved(), Saved::default());
}
