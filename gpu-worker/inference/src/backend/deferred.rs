//! A backend for tests: it only records, and runs a step when the step is waited for.
//!
//! It behaves as a device does that is as late as it may be. An engine that reads a result, or reuses what a
//! step still needs, before it has waited gives other tokens here than on the wrapped backend.
//! Also checks the order of calls in a step.

use std::collections::VecDeque;

use super::{
    Attend, Backend, BackendError, Buf, Caps, Embed, GraphKey, KvSpec, Linear, LinearExperts,
    LinearHeads, Norm, Pool, Role, RopeSpec, RopeStore, RopeTable, Route, SampleInputs, StepInputs,
    StepOutput, Ticket, Weight, WeightDesc, WeightSource,
};

/// Wraps a backend and puts off all of its work until [`Backend::wait`]; its lookahead is 1.
#[derive(Debug)]
pub struct Deferred<B> {
    inner: B,
    caps: Caps,
    phase: Phase,
    recorded: VecDeque<Step>,
    finished: VecDeque<(Ticket, StepOutput)>,
    tickets: u64,
}

/// How far the step in work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Begun,
    InGraph,
    Forwarded,
    Sampled,
}

#[derive(Debug)]
struct Step {
    inputs: StepInputs,
    graph: Option<(GraphKey, Vec<Operation>)>,
    sample: Option<(Buf, SampleInputs)>,
    ticket: Option<Ticket>,
}

#[derive(Debug)]
enum Operation {
    Embed(Embed),
    Norm(Norm),
    Linear(Linear),
    LinearHeads(LinearHeads),
    RopeStore(RopeStore),
    Attend(Attend),
    Route(Route),
    LinearExperts(LinearExperts),
    Pool(Pool),
    AllReduce(Buf),
}

impl<B: Backend> Deferred<B> {
    /// Wraps `inner`.
    pub fn new(inner: B) -> Self {
        let caps = Caps {
            lookahead: 1,
            fingerprint: format!("{}-deferred", inner.caps().fingerprint),
            ..inner.caps().clone()
        };
        Self {
            inner,
            caps,
            phase: Phase::Idle,
            recorded: VecDeque::new(),
            finished: VecDeque::new(),
            tickets: 0,
        }
    }

    /// Returns how many steps are recorded and have not run.
    pub fn pending_steps(&self) -> usize {
        self.recorded.len()
    }

    fn advance(&mut self, from: &[Phase], to: Phase) {
        assert!(
            from.contains(&self.phase),
            "a call that leads to {to:?} came in phase {:?}",
            self.phase
        );
        self.phase = to;
    }

    fn step(&mut self) -> &mut Step {
        self.recorded.back_mut().expect("a step has begun")
    }

    fn record(&mut self, operation: Operation) {
        assert_eq!(
            self.phase,
            Phase::InGraph,
            "forward operations are called inside graph"
        );
        let (_, operations) = self
            .step()
            .graph
            .as_mut()
            .expect("the graph call has made the list");
        operations.push(operation);
    }

    fn run(&mut self, step: Step) -> Result<(), BackendError> {
        self.inner.begin(&step.inputs);
        if let Some((key, operations)) = &step.graph {
            self.inner.graph(*key, &mut |inner| {
                operations
                    .iter()
                    .for_each(|operation| apply(inner, operation))
            });
        }
        if let Some((logits, inputs)) = &step.sample {
            self.inner.sample(*logits, inputs);
        }
        let inner_ticket = self.inner.end();
        let output = self.inner.wait(inner_ticket)?;
        self.finished
            .push_back((step.ticket.expect("a step that runs has ended"), output));
        Ok(())
    }
}

fn apply<B: Backend>(backend: &mut B, operation: &Operation) {
    match operation {
        Operation::Embed(op) => backend.embed(op),
        Operation::Norm(op) => backend.norm(op),
        Operation::Linear(op) => backend.linear(op),
        Operation::LinearHeads(op) => backend.linear_heads(op),
        Operation::RopeStore(op) => backend.rope_store(op),
        Operation::Attend(op) => backend.attend(op),
        Operation::Route(op) => backend.route(op),
        Operation::LinearExperts(op) => backend.linear_experts(op),
        Operation::Pool(op) => backend.pool(op),
        Operation::AllReduce(buf) => backend.all_reduce(*buf),
    }
}

impl<B: Backend> Backend for Deferred<B> {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn weight(
        &mut self,
        desc: &WeightDesc,
        source: &dyn WeightSource,
    ) -> Result<Weight, BackendError> {
        self.inner.weight(desc, source)
    }

    fn rope_table(&mut self, spec: &RopeSpec) -> Result<RopeTable, BackendError> {
        self.inner.rope_table(spec)
    }

    fn buf(&mut self, rows: usize, cols: usize, role: Role) -> Result<Buf, BackendError> {
        self.inner.buf(rows, cols, role)
    }

    fn kv(&mut self, spec: &KvSpec, pages: &[usize]) -> Result<(), BackendError> {
        self.inner.kv(spec, pages)
    }

    fn slots(&mut self, slots: usize, history_tokens: usize) -> Result<(), BackendError> {
        self.inner.slots(slots, history_tokens)
    }

    fn loaded(&mut self) {
        self.inner.loaded();
    }

    fn begin(&mut self, inputs: &StepInputs) {
        self.advance(&[Phase::Idle], Phase::Begun);
        let step = Step {
            inputs: inputs.clone(),
            graph: None,
            sample: None,
            ticket: None,
        };
        self.recorded.push_back(step);
    }

    fn graph(&mut self, key: GraphKey, forward: &mut dyn FnMut(&mut Self)) {
        self.advance(&[Phase::Begun], Phase::InGraph);
        self.step().graph = Some((key, Vec::new()));
        forward(self);
        self.advance(&[Phase::InGraph], Phase::Forwarded);
    }

    fn embed(&mut self, op: &Embed) {
        self.record(Operation::Embed(op.clone()));
    }

    fn norm(&mut self, op: &Norm) {
        self.record(Operation::Norm(op.clone()));
    }

    fn linear(&mut self, op: &Linear) {
        self.record(Operation::Linear(op.clone()));
    }

    fn linear_heads(&mut self, op: &LinearHeads) {
        self.record(Operation::LinearHeads(op.clone()));
    }

    fn rope_store(&mut self, op: &RopeStore) {
        self.record(Operation::RopeStore(op.clone()));
    }

    fn attend(&mut self, op: &Attend) {
        self.record(Operation::Attend(op.clone()));
    }

    fn route(&mut self, op: &Route) {
        self.record(Operation::Route(op.clone()));
    }

    fn linear_experts(&mut self, op: &LinearExperts) {
        self.record(Operation::LinearExperts(op.clone()));
    }

    fn pool(&mut self, op: &Pool) {
        self.record(Operation::Pool(op.clone()));
    }

    fn all_reduce(&mut self, buf: Buf) {
        self.record(Operation::AllReduce(buf));
    }

    fn sample(&mut self, logits: Buf, inputs: &SampleInputs) {
        self.advance(&[Phase::Forwarded], Phase::Sampled);
        self.step().sample = Some((logits, inputs.clone()));
    }

    fn end(&mut self) -> Ticket {
        self.advance(
            &[Phase::Begun, Phase::Forwarded, Phase::Sampled],
            Phase::Idle,
        );
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.step().ticket = Some(ticket);
        let open = self.recorded.len() + self.finished.len();
        assert!(open <= self.caps.lookahead + 1, "{open} tickets are open");
        ticket
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOutput, BackendError> {
        while self
            .recorded
            .front()
            .is_some_and(|step| step.ticket.is_some_and(|t| t.0 <= ticket.0))
        {
            let step = self.recorded.pop_front().expect("the front was just seen");
            self.run(step)?;
        }
        let at = self
            .finished
            .iter()
            .position(|entry| entry.0 == ticket)
            .expect("the ticket is open");
        Ok(self
            .finished
            .remove(at)
            .expect("the position was just found")
            .1)
    }
}
