//! The thread that carries lines to the server and answers back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batch_io::{Clock, Randomness};
use futures::future::{AbortHandle, Aborted, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use super::client::{Client, ServerAway};
use super::desk::{Desk, Next};
use super::letter;
use super::verdict::{Reply, judge};
use crate::pipeline::{
    EngineStopped, LineAnswer, LineFault, LineJob, LineKey, Progress, Stopped, spawn,
};

/// How often an idle thread shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Between two looks at the health of a server.
const PROBE_REST: Duration = Duration::from_secs(1);

/// Where time and draws come from.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) clock: Clock,
    pub(crate) random: Randomness,
}

enum ToServer {
    Run { job: Box<LineJob>, urgent: bool },
    Cancel(LineKey),
}

enum FromServer {
    Line(Box<LineAnswer>),
    Stopped(Stopped),
}

/// The thread's two ends. It ends when this is dropped; requests in flight are given up then.
#[derive(Debug)]
pub(crate) struct Courier {
    to_server: mpsc::UnboundedSender<ToServer>,
    from_server: mpsc::UnboundedReceiver<FromServer>,
}

/// What a courier carries for whom.
pub(crate) struct Route {
    /// The model's id in the catalog.
    pub(crate) id: String,
    /// What the server calls it.
    pub(crate) model: String,
    /// Requests in flight at once, at most.
    pub(crate) requests_max: u32,
    pub(crate) client: Client,
    pub(crate) outside: Outside,
    pub(crate) progress: Arc<Progress>,
}

impl Courier {
    /// Starts the thread.
    pub(crate) fn start(route: Route) -> Self {
        let (to_server, inbox) = mpsc::unbounded_channel();
        let (results, from_server) = mpsc::unbounded_channel();
        let failed = results.clone();
        let fail = move |why| {
            // The receiver is gone only when the pipeline is being dropped.
            let _ = failed.send(FromServer::Stopped(EngineStopped(why).into()));
        };
        let cannot_run = fail.clone();
        spawn("server", fail, move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(Rounds::new(route, results).serve(inbox)),
                Err(error) => cannot_run(format!("no runtime could be started: {error}")),
            }
        });
        Self {
            to_server,
            from_server,
        }
    }

    pub(crate) fn submit(&self, job: LineJob, urgent: bool) {
        let job = Box::new(job);
        // A send fails only when the thread is gone; `next` reports that.
        let _ = self.to_server.send(ToServer::Run { job, urgent });
    }

    pub(crate) fn cancel(&self, key: LineKey) {
        let _ = self.to_server.send(ToServer::Cancel(key));
    }

    pub(crate) async fn next(&mut self) -> Result<LineAnswer, Stopped> {
        match self.from_server.recv().await {
            Some(FromServer::Line(answer)) => Ok(*answer),
            Some(FromServer::Stopped(why)) => Err(why),
            None => Err(EngineStopped("the server's thread ended".to_owned()).into()),
        }
    }

    pub(crate) fn try_next(&mut self) -> Option<LineAnswer> {
        match self.from_server.try_recv() {
            Ok(FromServer::Line(answer)) => Some(*answer),
            Ok(FromServer::Stopped(_)) | Err(_) => None,
        }
    }
}

type Flight = BoxFuture<'static, (LineKey, Result<Reply, Aborted>)>;

/// The thread's state.
struct Rounds {
    route: Route,
    desk: Desk,
    flights: FuturesUnordered<Flight>,
    in_flight: HashMap<LineKey, AbortHandle>,
    probe: Option<BoxFuture<'static, Result<(), ServerAway>>>,
    probed_at: Option<Instant>,
    results: mpsc::UnboundedSender<FromServer>,
    steps: u64,
    tokens: u64,
    /// It is told once that answers have no usage.
    told_no_usage: bool,
}

impl Rounds {
    fn new(route: Route, results: mpsc::UnboundedSender<FromServer>) -> Self {
        Self {
            desk: Desk::new(route.requests_max),
            route,
            flights: FuturesUnordered::new(),
            in_flight: HashMap::new(),
            probe: None,
            probed_at: None,
            results,
            steps: 0,
            tokens: 0,
            told_no_usage: false,
        }
    }

    /// Serves the inbox until it closes, or until the server is away.
    async fn serve(mut self, mut inbox: mpsc::UnboundedReceiver<ToServer>) {
        loop {
            let wake = self.send_what_may_go().min(self.probe_if_in_doubt());
            self.steps += 1;
            let lines = self.desk.lines() as u64;
            self.route.progress.publish(self.steps, self.tokens, lines);
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.receive(message),
                    None => return,
                },
                Some((key, reply)) = self.flights.next() => {
                    // A request that was aborted is nobody's.
                    if let Ok(reply) = reply {
                        self.land(key, reply);
                    }
                }
                Some(health) = of_option(&mut self.probe) => {
                    self.probe = None;
                    self.probed_at = Some(now());
                    match health {
                        Ok(()) => self.desk.found_healthy(),
                        Err(away) => {
                            let _ = self.results.send(FromServer::Stopped(away.into()));
                            return;
                        }
                    }
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    fn receive(&mut self, message: ToServer) {
        match message {
            ToServer::Run { job, urgent } => {
                let key = job.key;
                match letter::write(*job, urgent, &self.route.model) {
                    Ok(letter) => self.desk.add(letter),
                    Err(error) => self.answer(LineAnswer {
                        key,
                        result: Err(LineFault::Line(error)),
                    }),
                }
            }
            ToServer::Cancel(key) => {
                self.desk.cancel(key);
                if let Some(flight) = self.in_flight.remove(&key) {
                    flight.abort();
                }
            }
        }
    }

    /// Returns when to look again.
    fn send_what_may_go(&mut self) -> Instant {
        loop {
            let now = now();
            let heartbeat = now + HEARTBEAT;
            match self.desk.next(now) {
                Next::Send(letter) => {
                    let client = self.route.client.clone();
                    let key = letter.key;
                    let post = async move { client.post(letter.path, letter.body).await };
                    let (post, handle) = abortable(post);
                    self.in_flight.insert(key, handle);
                    self.flights
                        .push(post.map(move |reply| (key, reply)).boxed());
                }
                Next::WaitUntil(until) => return until.min(heartbeat),
                Next::Wait => return heartbeat,
            }
        }
    }

    fn land(&mut self, key: LineKey, reply: Reply) {
        self.in_flight.remove(&key);
        let verdict = judge(reply, (self.route.outside.clock)());
        let limit = self.desk.limit();
        let draw = share((self.route.outside.random)());
        if let Some(answer) = self.desk.judged(key, verdict, now(), draw) {
            self.answer(answer);
        }
        if self.desk.limit() < limit {
            tracing::info!(
                model.id = %self.route.id, requests = self.desk.limit(),
                "the server strains: fewer requests at once"
            );
        }
    }

    fn answer(&mut self, answer: LineAnswer) {
        if let Ok(answered) = &answer.result {
            let tokens = answered.tokens;
            self.tokens += tokens.input - tokens.cached + tokens.output;
            if tokens.input == 0 && !std::mem::replace(&mut self.told_no_usage, true) {
                tracing::warn!(
                    model.id = %self.route.id,
                    "the server's answers do not say how many tokens they took: such lines cost nothing"
                );
            }
        }
        // The receiver is gone only when the pipeline is being dropped.
        let _ = self.results.send(FromServer::Line(Box::new(answer)));
    }

    /// Returns when to look again.
    fn probe_if_in_doubt(&mut self) -> Instant {
        let now = now();
        let later = now + HEARTBEAT;
        if self.probe.is_some() || !self.desk.is_in_doubt() {
            return later;
        }
        let rested_at = self.probed_at.map_or(now, |at| at + PROBE_REST);
        if now < rested_at {
            return rested_at;
        }
        let client = self.route.client.clone();
        self.probe = Some(async move { client.probe().await.map(drop) }.boxed());
        later
    }
}

/// Tokio's, so that a simulated time rules it, too.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits for what there is; none at once if there is nothing.
async fn of_option<F: Future + Unpin>(future: &mut Option<F>) -> Option<F::Output> {
    match future {
        Some(future) => Some(future.await),
        None => None,
    }
}

/// Makes a number from 0 to 1 out of random bytes.
fn share(bytes: [u8; 16]) -> f64 {
    let [a, b, c, d, ..] = bytes;
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}
