//! Runs the scheduler, and the map of equal requests before it, against a device without tensors.
//!
//! Each KV cell holds a hash of its tenant and of all tokens up to its own, and a token is drawn from all
//! cells that its row may see: a page that is reused too early, shared across tenants, or read before it is
//! written changes the output, which is compared with that of the sequence run alone.

use std::collections::HashSet;

use super::*;
use crate::backend::SampleParams;
use crate::engine::duplicates::{Asked, Duplicates, Question};
use crate::engine::{FinishReason, Generation, Outcome, Request, RequestId};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;

const PAGE_TOKENS: usize = 4;
const VOCABULARY: u64 = 6;
/// Ends a text.
const STOP: u32 = 0;

fn mix(left: u64, right: u64) -> u64 {
    let mut hash =
        (left ^ right.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x1234_5678_9abc_def1);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

fn draw(cells: impl Iterator<Item = u64>) -> Verdict {
    let digest = cells.fold(7, mix);
    if digest.is_multiple_of(199) {
        return Verdict::NotFinite;
    }
    match u32::try_from(digest % VOCABULARY).expect("a small number") {
        STOP if (digest >> 32).is_multiple_of(4) => Verdict::Stops(STOP),
        token => Verdict::Goes(token),
    }
}

fn cells_of(salt: u64, tokens: impl Iterator<Item = u32>) -> impl Iterator<Item = u64> {
    tokens.scan(mix(salt, 99), |cell, token| {
        *cell = mix(*cell, u64::from(token));
        Some(*cell)
    })
}

/// The output and its end when the sequence runs alone.
fn alone(request: &Request, context_tokens: usize) -> (Vec<u32>, EndReason) {
    let limit = (request.max_tokens as usize).min(context_tokens - request.prompt.len());
    let mut output: Vec<u32> = Vec::new();
    loop {
        let tokens = request.prompt.iter().chain(&output).copied();
        match draw(cells_of(request.salt, tokens)) {
            Verdict::Goes(token) => output.push(token),
            Verdict::Stops(token) => {
                output.push(token);
                return (output, EndReason::Stopped);
            }
            Verdict::NotFinite => return (output, EndReason::NotFinite),
            Verdict::Surplus => unreachable!("a draw is never surplus"),
        }
        if output.len() == limit {
            return (output, EndReason::Full);
        }
    }
}

/// The outcome of a request whose sequence came to this.
fn outcome(request: &Request, output: Vec<u32>, reason: EndReason, cached_tokens: u32) -> Outcome {
    let finish_reason = match reason {
        EndReason::Stopped => FinishReason::Stop,
        EndReason::Full => FinishReason::Length,
        EndReason::NotFinite => return Outcome::Failed(RequestFailure::NotFinite),
    };
    Outcome::Finished(Generation {
        text: String::new(),
        logprobs: None,
        finish_reason,
        prompt_tokens: request.prompt.len() as u32,
        cached_tokens,
        completion_tokens: output.len() as u32,
        tokens: output,
    })
}

fn cached_tokens(outcome: &Outcome) -> u32 {
    match outcome {
        Outcome::Finished(generation) => generation.cached_tokens,
        Outcome::Failed(failure) => panic!("{failure}"),
    }
}

/// The scheduler, a fake device, and what came out.
struct Bench {
    scheduler: Scheduler,
    duplicates: Duplicates,
    limits: Limits,
    lookahead: bool,
    cells: Vec<u64>,
    slots: Vec<Vec<u32>>,
    /// The request that each sequence was made for.
    requests: HashMap<SequenceId, Request>,
    outputs: HashMap<SequenceId, Vec<u32>>,
    /// Requests without an outcome, and the others.
    open: HashMap<RequestId, Request>,
    outcomes: HashMap<RequestId, Outcome>,
    under_way: Option<(Plan, Vec<Verdict>)>,
    /// Rows whose sequence had ended before they were sampled.
    surplus: usize,
}

impl Bench {
    fn new(limits: Limits, lookahead: bool) -> Bench {
        Bench {
            scheduler: Scheduler::new(limits),
            duplicates: Duplicates::new(false),
            limits,
            lookahead,
            cells: vec![0; limits.pages as usize * PAGE_TOKENS],
            slots: vec![Vec::new(); limits.sequences],
            requests: HashMap::new(),
            outputs: HashMap::new(),
            open: HashMap::new(),
            outcomes: HashMap::new(),
            under_way: None,
            surplus: 0,
        }
    }

    /// Lets the scheduler believe that outputs are short, so that it starts more than it can hold.
    fn expect_short_outputs(&mut self) {
        // Requests of every limit: what is known of a limit counts before what is known of all.
        for limit in (0..6).map(|log2| 1 << log2) {
            let class = OutputLength::Learned(LengthClass::new(0, &[], limit));
            for _ in 0..10_000 {
                self.scheduler.lengths.learn(class, 1);
            }
        }
    }

    fn submit(&mut self, request: Request) -> Result<(), RequestFailure> {
        let id = request.id;
        self.open.insert(id, request.clone());
        match self.duplicates.ask(id, Question::of(&request)) {
            Asked::Answered(generation) => self.end(id, Outcome::Finished(generation)),
            Asked::Joined(sequence) if request.urgent => self.scheduler.hurry(sequence),
            Asked::Joined(_) => {}
            Asked::New(question) => {
                let sequence = self.duplicates.next_sequence();
                let submitted = self.scheduler.submit(Arrival::new(sequence, &request));
                if submitted.is_err() {
                    self.open.remove(&id);
                    return submitted;
                }
                self.duplicates.open(id, question);
                self.outputs.insert(sequence, Vec::new());
                self.requests.insert(sequence, request);
            }
        }
        Ok(())
    }

    fn abort(&mut self, id: RequestId) {
        self.open.remove(&id);
        if let Some(sequence) = self.duplicates.leave(id) {
            self.scheduler.abort(sequence);
            self.outputs.remove(&sequence);
        }
    }

    /// Takes an outcome, which must be the one that the request has alone.
    fn end(&mut self, id: RequestId, ended: Outcome) {
        let request = self.open.remove(&id).expect("a request ends once");
        let (output, reason) = alone(&request, self.limits.context_tokens);
        let cached = match &ended {
            Outcome::Finished(generation) => generation.cached_tokens,
            Outcome::Failed(_) => 0,
        };
        assert_eq!(ended, outcome(&request, output, reason, cached));
        self.outcomes.insert(id, ended);
    }

    /// Writes the cells of all rows, as the backend does before any row attends.
    fn forward(&mut self, plan: &Plan) {
        let rows: usize = plan.runs().map(|run| run.tokens.len()).sum();
        assert!(
            rows <= self.limits.step_tokens,
            "{rows} rows are over the step's budget"
        );
        assert!(plan.runs().count() <= self.limits.sequences);
        for run in plan.runs() {
            if let Some(restore) = &run.restore {
                self.slots[run.slot as usize] = [restore.prompt.as_ref(), &restore.output].concat();
            }
            let salt = self.requests[&run.id].salt;
            assert_eq!(run.pages.len(), run.end().div_ceil(PAGE_TOKENS));
            for (offset, token) in run.tokens.iter().enumerate() {
                let token = match token {
                    RowToken::Known(token) => *token,
                    RowToken::Last => *self.slots[run.slot as usize]
                        .last()
                        .expect("a slot with history"),
                };
                let position = run.start + offset;
                let before = match position.checked_sub(1) {
                    Some(before) => self.cells[cell(run, before)],
                    None => mix(salt, 99),
                };
                self.cells[cell(run, position)] = mix(before, u64::from(token));
            }
        }
    }

    /// Draws a token for each sampled run whose sequence is still here.
    fn sample(&mut self, plan: &Plan) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for sampled in &plan.sampled {
            let run = &sampled.run;
            if !self.outputs.contains_key(&run.id) {
                verdicts.push(Verdict::Surplus);
                self.surplus += 1;
                continue;
            }
            let verdict = draw((0..run.end()).map(|position| self.cells[cell(run, position)]));
            if let Verdict::Goes(token) | Verdict::Stops(token) = verdict {
                self.slots[run.slot as usize].push(token);
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    fn apply(&mut self, plan: &Plan, mut verdicts: Vec<Verdict>) {
        for (sampled, verdict) in plan.sampled.iter().zip(&mut verdicts) {
            match self.outputs.get_mut(&sampled.run.id) {
                None => *verdict = Verdict::Surplus,
                Some(output) => {
                    if let Verdict::Goes(token) | Verdict::Stops(token) = *verdict {
                        output.push(token);
                    }
                }
            }
        }
        for ended in self.scheduler.apply(plan, &verdicts) {
            let output = self
                .outputs
                .remove(&ended.id)
                .expect("a sequence ends once");
            let request = &self.requests[&ended.id];
            let outcome = outcome(request, output, ended.reason, ended.cached_tokens);
            for (request, outcome) in self.duplicates.close(ended.id, outcome) {
                self.end(request, outcome);
            }
        }
    }

    fn step(&mut self) -> bool {
        let plan = self.scheduler.plan();
        let before = self.under_way.take();
        if plan.is_empty() && before.is_none() {
            return false;
        }
        self.forward(&plan);
        if let Some((before, verdicts)) = before {
            self.apply(&before, verdicts);
        }
        let verdicts = self.sample(&plan);
        if self.lookahead {
            self.under_way = (!plan.is_empty()).then_some((plan, verdicts));
        } else {
            self.apply(&plan, verdicts);
        }
        true
    }

    fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "the scheduler makes no progress");
        }
        assert!(
            self.outputs.is_empty() && self.open.is_empty() && self.duplicates.is_idle(),
            "somebody neither ended nor was aborted"
        );
        let (total, available) = self.scheduler.pages();
        assert_eq!(available, total, "pages are still in use when nothing runs");
    }
}

fn cell(run: &Run, position: usize) -> usize {
    run.pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

fn limits(step_tokens: usize, sequences: usize, pages: u32) -> Limits {
    Limits {
        step_tokens,
        sequences,
        pages,
        page_tokens: PAGE_TOKENS,
        context_tokens: 64,
        prefix_cache: true,
    }
}

fn request(id: u64, salt: u64, prompt: &[u32], max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        prompt: Arc::from(prompt),
        salt,
        urgent: false,
        seed: 0,
        choice: 0,
        max_tokens,
        params: SampleParams::GREEDY,
        logit_bias: vec![],
        logprobs: None,
        stop: vec![],
        stop_tokens: Arc::from([]),
        ignore_eos: false,
    }
}

#[test]
fn prompt_without_room_for_output_is_too_long() {
    let mut bench = Bench::new(limits(8, 2, 32), false);
    let failure = bench.submit(request(1, 0, &[1; 64], 1)).unwrap_err();
    let expected = RequestFailure::ContextTooLong {
        prompt_tokens: 64,
        context_tokens: 64,
    };
    assert_eq!(failure, expected);
    assert_eq!(bench.submit(request(2, 0, &[1; 63], 9)), Ok(()));
    bench.run();
}

#[test]
fn sequence_that_the_whole_pool_cannot_hold_fails_at_once() {
    let mut bench = Bench::new(limits(8, 2, 4), false);
    let failure = bench.submit(request(1, 0, &[1; 8], 10)).unwrap_err();
    let expected = RequestFailure::PoolTooSmall {
        pool_tokens: 16,
        needed_tokens: 17,
    };
    assert_eq!(failure, expected);
    assert_eq!(bench.submit(request(2, 0, &[1; 8], 9)), Ok(()));
    bench.run();
}

/// Runs the requests one after another, and returns the tokens that each found in the cache.
fn cached(requests: &[Request]) -> Vec<u32> {
    let mut bench = Bench::new(limits(16, 4, 64), false);
    requests
        .iter()
        .map(|request| {
            bench.submit(request.clone()).unwrap();
            bench.run();
            cached_tokens(&bench.outcomes[&request.id])
        })
        .collect()
}

#[test]
fn full_pages_of_a_prompt_are_found_again_but_for_its_last_token() {
    let prompt = [1, 2, 3, 4, 5, 1, 2, 3];
    assert_eq!(
        cached(&[request(1, 0, &prompt, 1), request(2, 0, &prompt, 1)]),
        [0, 4]
    );
    let longer = [1, 2, 3, 4, 5, 1, 2, 3, 4];
    assert_eq!(
        cached(&[request(1, 0, &prompt, 1), request(2, 0, &longer, 1)]),
        [0, 8]
    );
}

#[test]
fn pages_of_another_tenant_are_not_found() {
    let prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4];
    assert_eq!(
        cached(&[request(1, 0, &prompt, 1), request(2, 1, &prompt, 1)]),
        [0, 0]
    );
}

#[test]
fn generated_pages_are_found_by_a_prompt_that_goes_on() {
    let (first, output) = (1..100)
        .map(|token| request(1, 0, &[token, 2, 3], 12))
        .map(|request| (request.clone(), alone(&request, 64).0))
        .find(|(_, output)| output.len() == 12)
        .expect("one of the prompts does not stop early");
    let mut prompt = first.prompt.to_vec();
    prompt.extend(&output);
    prompt.push(1);
    // 3 + 12 tokens, of which the last is never stored: three full pages.
    assert_eq!(cached(&[first, request(2, 0, &prompt, 1)]), [0, 12]);
}

#[test]
fn sequence_waits_for_a_prefix_that_another_computes() {
    let mut bench = Bench::new(limits(16, 4, 64), false);
    let prompt: Vec<u32> = (0..25).map(|index| index % 5).collect();
    for id in 0..3 {
        bench.submit(request(id, 0, &prompt, 1)).unwrap();
    }
    bench.submit(request(9, 0, &[5, 5, 5], 1)).unwrap();
    bench.step();
    bench.step();
    assert_eq!(
        bench.scheduler.queues(),
        (2, 0),
        "the short one passes those that wait for the prefix, though the step had room for them"
    );
    bench.run();
    let cached = |id| cached_tokens(&bench.outcomes[&RequestId(id)]);
    assert_eq!([cached(0), cached(1), cached(2)], [0, 24, 24]);
    assert_eq!(bench.scheduler.counters().prompt_tokens, 25 + 1 + 1 + 3);
}

#[test]
fn waiting_sequence_goes_on_when_the_computing_one_is_aborted() {
    let mut bench = Bench::new(limits(8, 4, 64), true);
    let prompt: Vec<u32> = (0..25).map(|index| index % 5).collect();
    bench.submit(request(1, 0, &prompt, 1)).unwrap();
    bench.submit(request(2, 0, &prompt, 1)).unwrap();
    bench.step();
    bench.abort(RequestId(1));
    bench.run();
    assert_eq!(bench.outcomes.keys().collect::<Vec<_>>(), [&RequestId(2)]);
}

#[test]
fn newest_gives_way_when_outputs_are_longer_than_expected() {
    for lookahead in [false, true] {
        let mut bench = Bench::new(limits(16, 4, 10), lookahead);
        bench.expect_short_outputs();
        for id in 0..12 {
            bench
                .submit(request(id, 0, &[id as u32, 1, 2], 30))
                .unwrap();
        }
        bench.run();
        assert!(bench.scheduler.counters().preemptions > 0);
        assert_eq!(bench.outcomes.len(), 12);
    }
}

#[test]
fn urgent_copy_hurries_the_sequence_that_it_waits_for() {
    let mut bench = Bench::new(limits(8, 1, 32), false);
    bench.duplicates = Duplicates::new(true);
    for id in 0..4 {
        bench.submit(request(id, 0, &[id as u32], 1)).unwrap();
    }
    let urgent = Request {
        urgent: true,
        ..request(9, 0, &[2], 1)
    };
    bench.submit(urgent).unwrap();
    bench.step();
    let mut ended: Vec<u64> = bench.outcomes.keys().map(|id| id.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [2, 9]);
    bench.run();
    assert_eq!(bench.outcomes.len(), 5);
}

/// Runs requests whose outputs are as long as their limits, and returns the most that ran at once.
fn most_at_once(limits: Limits, requests: impl Iterator<Item = Request>) -> (usize, Counters) {
    let mut scheduler = Scheduler::new(limits);
    for (id, request) in (0..).zip(requests) {
        let arrival = Arrival::new(SequenceId(id), &request);
        scheduler.submit(arrival).expect("it fits");
    }
    let mut most = 0;
    loop {
        let plan = scheduler.plan();
        if plan.is_empty() {
            return (most, scheduler.counters());
        }
        most = most.max(scheduler.queues().1);
        scheduler.apply(&plan, &vec![Verdict::Goes(1); plan.sampled.len()]);
    }
}

#[test]
fn pool_is_used_by_as_many_as_it_holds() {
    let limits = Limits {
        page_tokens: 16,
        context_tokens: 2048,
        ..limits(256, 128, 17_000 / 16)
    };
    for ignore_eos in [true, false] {
        let requests = (0..200).map(|id| Request {
            ignore_eos,
            ..request(id, 0, &[id as u32; 95], 64)
        });
        let (most, counters) = most_at_once(limits, requests);
        assert!(most > 100, "{most} at once");
        assert_eq!(counters.preemptions, 0);
    }
}

#[derive(Debug, Clone)]
struct Story {
    limits: Limits,
    lookahead: bool,
    expects_short: bool,
    duplicates: bool,
    /// The step at which each request comes, and the step at which it is aborted, if it is.
    requests: Vec<(usize, Option<usize>, Request)>,
}

fn stories() -> impl Strategy<Value = Story> {
    let requested = (
        0usize..20,
        prop::option::weighted(0.15, 0usize..40),
        0u64..2,
        // A common prefix, cut anywhere, then a tail of its own.
        (0u32..2, 0usize..24, prop::collection::vec(1u32..3, 1..10)),
        1u32..30,
        // Urgent; believed to go on to its limit, which the device does not care about. Where short outputs
        // are expected, they are not believed in.
        any::<[bool; 2]>(),
        // The same as an earlier one.
        prop::option::weighted(0.3, any::<Index>()),
    );
    let shape = (1usize..8, 0usize..20, 8u32..16, any::<[bool; 4]>());
    (shape, prop::collection::vec(requested, 1..24)).prop_map(|(shape, requested)| {
        let (sequences, more_rows, pages, flags) = shape;
        let [prefix_cache, lookahead, expects_short, duplicates] = flags;
        let limits = Limits {
            prefix_cache,
            context_tokens: 40,
            ..limits(sequences + more_rows, sequences, pages)
        };
        let mut requests: Vec<(usize, Option<usize>, Request)> = Vec::new();
        for (id, (start, abort, salt, prompt, max_tokens, flags, same)) in (0..).zip(requested) {
            let (base, cut, tail) = prompt;
            let prefix = (0..cut as u32).map(|position| (position * (base + 2)) % 5);
            let prompt: Vec<u32> = prefix.chain(tail).collect();
            let own = request(id, salt, &prompt, max_tokens);
            let same = same.filter(|_| id > 0);
            let same = same.map(|index| requests[index.index(requests.len())].2.clone());
            let [urgent, ignore_eos] = flags;
            let request = Request {
                id: own.id,
                urgent,
                ignore_eos: ignore_eos && !expects_short,
                ..same.unwrap_or(own)
            };
            requests.push((start, abort, request));
        }
        Story {
            limits,
            lookahead,
            expects_short,
            duplicates,
            requests,
        }
    })
}

/// Lives a story through, and checks that nobody is lost.
fn live(story: &Story) -> Bench {
    let mut bench = Bench::new(story.limits, story.lookahead);
    bench.duplicates = Duplicates::new(story.duplicates);
    if story.expects_short {
        bench.expect_short_outputs();
    }
    let mut refused = 0;
    let mut aborted = HashSet::new();
    for step in 0..50 {
        for (start, _, request) in &story.requests {
            if *start == step && bench.submit(request.clone()).is_err() {
                refused += 1;
            }
        }
        for (_, abort, request) in &story.requests {
            if *abort == Some(step) && bench.open.contains_key(&request.id) {
                bench.abort(request.id);
                aborted.insert(request.id);
            }
        }
        bench.step();
    }
    bench.run();
    assert!(aborted.iter().all(|id| !bench.outcomes.contains_key(id)));
    let ended = bench.outcomes.len();
    assert_eq!(ended + refused + aborted.len(), story.requests.len());
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn every_request_ends_once_as_if_it_were_alone(story in stories()) {
        live(&story);
    }
}

#[test]
fn stories_reach_preemption_sharing_copies_surplus_rows_and_every_end() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut preemptions, mut cached, mut copied, mut surplus) = (0, 0, 0, 0);
    let mut ends: HashMap<String, usize> = HashMap::new();
    for _ in 0..300 {
        let story = stories()
            .new_tree(&mut runner)
            .expect("a story can always be made")
            .current();
        let bench = live(&story);
        preemptions += bench.scheduler.counters().preemptions;
        cached += bench.scheduler.counters().cached_tokens;
        copied += bench.duplicates.saved().requests;
        surplus += bench.surplus;
        for outcome in bench.outcomes.values() {
            let end = match outcome {
                Outcome::Finished(generation) => format!("{:?}", generation.finish_reason),
                Outcome::Failed(failure) => failure.to_string(),
            };
            *ends.entry(end).or_default() += 1;
        }
    }
    let coverage = format!(
        "{preemptions} preemptions, {cached} cached, {copied} copied, {surplus} surplus, {ends:?}"
    );
    assert!(
        preemptions > 100 && cached > 1000 && copied > 200 && surplus > 50 && ends.len() == 3,
        "{coverage}"
    );
}
