//! What was counted, times list prices, as a table.

use std::collections::BTreeMap;
use std::fmt;

use batch_io::counting::{Counts, Entry, Operation, Tally};

/// Counts under a title.
#[derive(Debug)]
pub(crate) struct Bill {
    pub(crate) title: String,
    pub(crate) entries: BTreeMap<Entry, Tally>,
}

impl Bill {
    /// Returns the whole price in dollars.
    pub(crate) fn dollars(&self) -> f64 {
        self.entries
            .iter()
            .map(|((_, operation), tally)| dollars(*operation, tally))
            .sum()
    }

    fn by_operation(&self) -> BTreeMap<Operation, Tally> {
        let mut sums: BTreeMap<Operation, Tally> = BTreeMap::new();
        for ((_, operation), tally) in &self.entries {
            let sum = sums.entry(*operation).or_default();
            sum.calls += tally.calls;
            sum.units += tally.units;
        }
        sums
    }

    fn by_actor(&self) -> BTreeMap<&'static str, f64> {
        let mut sums = BTreeMap::new();
        for ((actor, operation), tally) in &self.entries {
            *sums.entry(*actor).or_default() += dollars(*operation, tally);
        }
        sums
    }
}

impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        writeln!(
            f,
            "| call | billed as | calls | units | $ per million | $ |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|")?;
        for (operation, Tally { calls, units }) in self.by_operation() {
            let unit = operation.unit();
            writeln!(
                f,
                "| {operation:?} | {} | {calls} | {units:.0} | {:.3} | {:.4} |",
                unit.name(),
                unit.price() * 1e6,
                units * unit.price()
            )?;
        }
        writeln!(f, "| **all** | | | | | **{:.4}** |\n", self.dollars())?;
        writeln!(f, "| who | $ |\n|---|---:|")?;
        for (actor, dollars) in self.by_actor() {
            writeln!(f, "| {actor} | {dollars:.4} |")?;
        }
        Ok(())
    }
}

/// How long a function waits for a call, in milliseconds: an estimate, for its billed time.
fn latency_ms(operation: Operation) -> f64 {
    match operation {
        Operation::GetItem | Operation::Query | Operation::WriteItem => 6.0,
        // Eight at once.
        Operation::QueryIndex => 1.0,
        Operation::TransactItems => 15.0,
        // What the runtime itself takes of each call.
        Operation::Invoke => 10.0,
        Operation::WriteIndex
        | Operation::DeleteMessage
        | Operation::Run
        | Operation::CallApi
        | Operation::ReceiveMessages
        | Operation::ReceiveNothing => 0.0,
        Operation::PutObject | Operation::ListObjects | Operation::DeleteObject => 30.0,
        Operation::GetObject => 25.0,
        Operation::UploadPart => 120.0,
        Operation::SendMessages | Operation::ChangeVisibility | Operation::GetQueueAttributes => {
            10.0
        }
    }
}

/// Adds the time that an actor's invocations ran: its calls one after the other, `own_s` beside, at so many GB.
pub(super) fn add_run_time(counts: &Counts, actor: &'static str, own_s: f64, gigabytes: f64) {
    let entries = counts.read();
    let own = entries.iter().filter(|((who, _), _)| *who == actor);
    let waited_ms: f64 = own
        .map(|((_, operation), tally)| tally.calls as f64 * latency_ms(*operation))
        .sum();
    let seconds = waited_ms / 1_000.0 + own_s;
    counts.add(actor, Operation::Run, 1, seconds * gigabytes);
}

fn dollars(operation: Operation, tally: &Tally) -> f64 {
    tally.units * operation.unit().price()
}
