//! Runs the scheduler against a device without tensors.
//!
//! Each KV cell holds a hash of its tenant and of all tokens up to its own, and a token is drawn from all
//! cells that its row may see: a page that is reused too early, shared across tenants, or read before it is
//! written changes the output, which is compared with that of the sequence run alone.

use super::*;
use proptest::prelude::*;
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
fn alone(arrival: &Arrival, context_tokens: usize) -> (Vec<u32>, EndReason) {
    let limit = arrival
        .max_tokens
        .min(context_tokens - arrival.prompt.len());
    let mut output: Vec<u32> = Vec::new();
    loop {
        let tokens = arrival.prompt.iter().chain(&output).copied();
        match draw(cells_of(arrival.salt, tokens)) {
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

/// The scheduler, a fake device, and what came out.
struct Bench {
    scheduler: Scheduler,
    limits: Limits,
    lookahead: bool,
    cells: Vec<u64>,
    slots: Vec<Vec<u32>>,
    arrivals: HashMap<RequestId, Arrival>,
    outputs: HashMap<RequestId, Vec<u32>>,
    ended: HashMap<RequestId, Ended>,
    under_way: Option<(Plan, Vec<Verdict>)>,
    /// Rows whose sequence had ended before they were sampled.
    surplus: usize,
}

impl Bench {
    fn new(limits: Limits, lookahead: bool) -> Bench {
        Bench {
            scheduler: Scheduler::new(limits),
            limits,
            lookahead,
            cells: vec![0; limits.pages as usize * PAGE_TOKENS],
            slots: vec![Vec::new(); limits.sequences],
            arrivals: HashMap::new(),
            outputs: HashMap::new(),
            ended: HashMap::new(),
            under_way: None,
            surplus: 0,
        }
    }

    /// Lets the scheduler believe that outputs are short, so that it starts more than it can hold.
    fn expect_short_outputs(&mut self) {
        for _ in 0..10_000 {
            self.scheduler.estimate.learn(1);
        }
    }

    fn submit(&mut self, arrival: Arrival) -> Result<(), RequestFailure> {
        self.scheduler.submit(arrival.clone())?;
        self.outputs.insert(arrival.id, Vec::new());
        self.arrivals.insert(arrival.id, arrival);
        Ok(())
    }

    fn abort(&mut self, id: RequestId) {
        self.scheduler.abort(id);
        self.outputs.remove(&id);
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
            let salt = self.arrivals[&run.id].salt;
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
            let arrival = &self.arrivals[&ended.id];
            assert_eq!(
                (output, ended.reason),
                alone(arrival, self.limits.context_tokens)
            );
            assert!(self.ended.insert(ended.id, ended).is_none());
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
            self.outputs.is_empty(),
            "sequences neither ended nor were aborted"
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

fn arrival(id: u64, salt: u64, prompt: &[u32], max_tokens: usize) -> Arrival {
    Arrival {
        id: RequestId(id),
        prompt: Arc::from(prompt),
        salt,
        max_tokens,
    }
}

#[test]
fn prompt_without_room_for_output_is_too_long() {
    let mut bench = Bench::new(limits(8, 2, 32), false);
    let failure = bench.submit(arrival(1, 0, &[1; 64], 1)).unwrap_err();
    let expected = RequestFailure::ContextTooLong {
        prompt_tokens: 64,
        context_tokens: 64,
    };
    assert_eq!(failure, expected);
    assert_eq!(bench.submit(arrival(2, 0, &[1; 63], 9)), Ok(()));
    bench.run();
}

#[test]
fn sequence_that_the_whole_pool_cannot_hold_fails_at_once() {
    let mut bench = Bench::new(limits(8, 2, 4), false);
    let failure = bench.submit(arrival(1, 0, &[1; 8], 10)).unwrap_err();
    let expected = RequestFailure::PoolTooSmall {
        pool_tokens: 16,
        needed_tokens: 17,
    };
    assert_eq!(failure, expected);
    assert_eq!(bench.submit(arrival(2, 0, &[1; 8], 9)), Ok(()));
    bench.run();
}

/// Runs the requests one after another, and returns the tokens that each found in the cache.
fn cached(arrivals: &[Arrival]) -> Vec<u32> {
    let mut bench = Bench::new(limits(16, 4, 64), false);
    arrivals
        .iter()
        .map(|arrival| {
            bench.submit(arrival.clone()).unwrap();
            bench.run();
            bench.ended[&arrival.id].cached_tokens
        })
        .collect()
}

#[test]
fn full_pages_of_a_prompt_are_found_again_but_for_its_last_token() {
    let prompt = [1, 2, 3, 4, 5, 1, 2, 3];
    assert_eq!(
        cached(&[arrival(1, 0, &prompt, 1), arrival(2, 0, &prompt, 1)]),
        [0, 4]
    );
    let longer = [1, 2, 3, 4, 5, 1, 2, 3, 4];
    assert_eq!(
        cached(&[arrival(1, 0, &prompt, 1), arrival(2, 0, &longer, 1)]),
        [0, 8]
    );
}

#[test]
fn pages_of_another_tenant_are_not_found() {
    let prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4];
    assert_eq!(
        cached(&[arrival(1, 0, &prompt, 1), arrival(2, 1, &prompt, 1)]),
        [0, 0]
    );
}

#[test]
fn generated_pages_are_found_by_a_prompt_that_goes_on() {
    let (first, output) = (1..100)
        .map(|token| arrival(1, 0, &[token, 2, 3], 12))
        .map(|arrival| (arrival.clone(), alone(&arrival, 64).0))
        .find(|(_, output)| output.len() == 12)
        .expect("one of the prompts does not stop early");
    let mut prompt = first.prompt.to_vec();
    prompt.extend(&output);
    prompt.push(1);
    // 3 + 12 tokens, of which the last is never stored: three full pages.
    assert_eq!(cached(&[first, arrival(2, 0, &prompt, 1)]), [0, 12]);
}

#[test]
fn sequence_waits_for_a_prefix_that_another_computes() {
    let mut bench = Bench::new(limits(16, 4, 64), false);
    let prompt: Vec<u32> = (0..25).map(|index| index % 5).collect();
    for id in 0..3 {
        bench.submit(arrival(id, 0, &prompt, 1)).unwrap();
    }
    bench.submit(arrival(9, 0, &[5, 5, 5], 1)).unwrap();
    bench.step();
    bench.step();
    assert_eq!(
        bench.scheduler.queues(),
        (2, 0),
        "the short one passes those that wait for the prefix, though the step had room for them"
    );
    bench.run();
    let cached = |id| bench.ended[&RequestId(id)].cached_tokens;
    assert_eq!([cached(0), cached(1), cached(2)], [0, 24, 24]);
    assert_eq!(bench.scheduler.counters().prompt_tokens, 25 + 1 + 1 + 3);
}

#[test]
fn waiting_sequence_goes_on_when_the_computing_one_is_aborted() {
    let mut bench = Bench::new(limits(8, 4, 64), true);
    let prompt: Vec<u32> = (0..25).map(|index| index % 5).collect();
    bench.submit(arrival(1, 0, &prompt, 1)).unwrap();
    bench.submit(arrival(2, 0, &prompt, 1)).unwrap();
    bench.step();
    bench.abort(RequestId(1));
    bench.run();
    assert_eq!(bench.ended.keys().collect::<Vec<_>>(), [&RequestId(2)]);
}

#[test]
fn newest_gives_way_when_outputs_are_longer_than_expected() {
    for lookahead in [false, true] {
        let mut bench = Bench::new(limits(16, 4, 10), lookahead);
        bench.expect_short_outputs();
        for id in 0..12 {
            bench
                .submit(arrival(id, 0, &[id as u32, 1, 2], 30))
                .unwrap();
        }
        bench.run();
        assert!(bench.scheduler.counters().preemptions > 0);
        assert_eq!(bench.ended.len(), 12);
    }
}

#[derive(Debug, Clone)]
struct Story {
    limits: Limits,
    lookahead: bool,
    expects_short: bool,
    /// The step at which each request comes, and the step at which it is aborted, if it is.
    requests: Vec<(usize, Option<usize>, Arrival)>,
}

fn stories() -> impl Strategy<Value = Story> {
    let request = (
        0usize..20,
        prop::option::weighted(0.15, 0usize..40),
        0u64..2,
        // A common prefix, cut anywhere, then a tail of its own.
        (0u32..2, 0usize..24, prop::collection::vec(1u32..3, 1..10)),
        1usize..30,
    );
    let shape = (1usize..8, 0usize..20, 8u32..24, any::<[bool; 3]>());
    (shape, prop::collection::vec(request, 1..24)).prop_map(|(shape, requests)| {
        let (sequences, more_rows, pages, [prefix_cache, lookahead, expects_short]) = shape;
        let limits = Limits {
            prefix_cache,
            context_tokens: 40,
            ..limits(sequences + more_rows, sequences, pages)
        };
        let arrival = |(index, (start, abort, salt, (base, cut, tail), max_tokens))| {
            let (index, tail): (usize, Vec<u32>) = (index, tail);
            let prefix = (0..cut as u32).map(|position| (position * (base + 2)) % 5);
            let prompt: Vec<u32> = prefix.chain(tail).collect();
            (
                start,
                abort,
                arrival(index as u64, salt, &prompt, max_tokens),
            )
        };
        Story {
            limits,
            lookahead,
            expects_short,
            requests: requests.into_iter().enumerate().map(arrival).collect(),
        }
    })
}

/// Lives a story through, and checks that nobody is lost.
fn live(story: &Story) -> Bench {
    let mut bench = Bench::new(story.limits, story.lookahead);
    if story.expects_short {
        bench.expect_short_outputs();
    }
    let mut refused = 0;
    let mut aborted = 0;
    for step in 0..50 {
        for (start, _, arrival) in &story.requests {
            if *start == step && bench.submit(arrival.clone()).is_err() {
                refused += 1;
            }
        }
        for (start, abort, arrival) in &story.requests {
            if *abort == Some(step) && *start <= step && bench.outputs.contains_key(&arrival.id) {
                bench.abort(arrival.id);
                aborted += 1;
            }
        }
        bench.step();
    }
    bench.run();
    assert_eq!(bench.ended.len() + refused + aborted, story.requests.len());
    bench
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn every_sequence_ends_once_as_if_it_were_alone(story in stories()) {
        live(&story);
    }
}

#[test]
fn stories_reach_preemption_sharing_surplus_rows_and_every_end() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut preemptions, mut cached, mut surplus) = (0, 0, 0);
    let mut ends: HashMap<String, usize> = HashMap::new();
    for _ in 0..300 {
        let story = stories()
            .new_tree(&mut runner)
            .expect("a story can always be made")
            .current();
        let bench = live(&story);
        preemptions += bench.scheduler.counters().preemptions;
        cached += bench.scheduler.counters().cached_tokens;
        surplus += bench.surplus;
        for ended in bench.ended.values() {
            *ends.entry(format!("{:?}", ended.reason)).or_default() += 1;
        }
    }
    let coverage =
        format!("{preemptions} preemptions, {cached} cached, {surplus} surplus, {ends:?}");
    assert!(
        preemptions > 100 && cached > 1000 && surplus > 50 && ends.len() == 3,
        "{coverage}"
    );
}
