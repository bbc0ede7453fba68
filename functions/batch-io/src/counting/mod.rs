//! Ports that count what AWS would bill for their calls, by actor and operation.
//!
//! The counts follow what the adapters in `aws` send: a single write that may be repeated is plain, every
//! other is a transaction, and a look at the work index asks each of its partitions. Nothing here changes
//! what a call does.

mod blobs;
mod queue;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::platform::Platform;

/// What AWS bills by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// DynamoDB write request unit: 1 KB written.
    Write,
    /// DynamoDB read request unit: 4 KB read strongly; half of one for an eventual read.
    Read,
    /// S3 PUT, COPY, POST or LIST.
    Put,
    /// S3 GET or HEAD.
    Get,
    /// SQS request of at most 64 KB.
    Message,
    /// Lambda invocation.
    Invocation,
    /// GB-second of a Lambda function on arm64.
    GbSecond,
    /// API Gateway request to a REST API.
    Request,
    /// Deletes in S3.
    Free,
}

impl Unit {
    /// Returns the list price in dollars (us-east-1, on demand, without free tiers).
    ///
    /// Source: AWS price lists of 2026 for DynamoDB, S3 Standard, SQS standard queues, Lambda and API Gateway.
    #[must_use]
    pub fn price(self) -> f64 {
        match self {
            Unit::Write => 0.625e-6,
            Unit::Read => 0.125e-6,
            Unit::Put => 5.0e-6,
            Unit::Get => 0.4e-6,
            Unit::Message => 0.4e-6,
            Unit::Invocation => 0.2e-6,
            Unit::GbSecond => 13.333_4e-6,
            Unit::Request => 3.5e-6,
            Unit::Free => 0.0,
        }
    }

    /// Returns its name in a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Unit::Write => "DynamoDB write units",
            Unit::Read => "DynamoDB read units",
            Unit::Put => "S3 PUT, COPY, POST, LIST",
            Unit::Get => "S3 GET",
            Unit::Message => "SQS requests",
            Unit::Invocation => "Lambda invocations",
            Unit::GbSecond => "Lambda GB-seconds",
            Unit::Request => "API Gateway requests",
            Unit::Free => "free",
        }
    }
}

/// One kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `GetItem`, consistent.
    GetItem,
    /// `Query` of the table, consistent.
    Query,
    /// `Query` of the work index: one for each of its partitions.
    QueryIndex,
    /// `PutItem`, `UpdateItem` or `DeleteItem`.
    WriteItem,
    /// `TransactWriteItems`.
    TransactItems,
    /// What writes change in the work index.
    WriteIndex,
    /// `PutObject`.
    PutObject,
    /// `CreateMultipartUpload`, `UploadPart`, `UploadPartCopy`, `CompleteMultipartUpload`.
    UploadPart,
    /// `ListObjectsV2`.
    ListObjects,
    /// `GetObject`, `HeadObject`.
    GetObject,
    /// `DeleteObject`, `DeleteObjects`, `AbortMultipartUpload`.
    DeleteObject,
    /// `SendMessageBatch` of at most ten.
    SendMessages,
    /// `ReceiveMessage` that brought something.
    ReceiveMessages,
    /// `ReceiveMessage` that waited in vain.
    ReceiveNothing,
    /// `DeleteMessage`.
    DeleteMessage,
    /// `ChangeMessageVisibility`.
    ChangeVisibility,
    /// `GetQueueAttributes`.
    GetQueueAttributes,
    /// A call of a function.
    Invoke,
    /// The time that functions ran.
    Run,
    /// A call of the API by a client.
    CallApi,
}

impl Operation {
    /// Returns what it is billed by.
    #[must_use]
    pub fn unit(self) -> Unit {
        match self {
            Operation::GetItem | Operation::Query | Operation::QueryIndex => Unit::Read,
            Operation::WriteItem | Operation::TransactItems | Operation::WriteIndex => Unit::Write,
            Operation::PutObject | Operation::UploadPart | Operation::ListObjects => Unit::Put,
            Operation::GetObject => Unit::Get,
            Operation::DeleteObject => Unit::Free,
            Operation::SendMessages
            | Operation::ReceiveMessages
            | Operation::ReceiveNothing
            | Operation::DeleteMessage
            | Operation::ChangeVisibility
            | Operation::GetQueueAttributes => Unit::Message,
            Operation::Invoke => Unit::Invocation,
            Operation::Run => Unit::GbSecond,
            Operation::CallApi => Unit::Request,
        }
    }
}

/// What was counted of one kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tally {
    /// Calls.
    pub calls: u64,
    /// Billed units.
    pub units: f64,
}

/// Who called, and what.
pub type Entry = (&'static str, Operation);

/// Counts of several actors. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Mutex<BTreeMap<Entry, Tally>>>);

impl Counts {
    /// Returns the platform with ports that count for `actor`.
    #[must_use]
    pub fn wrap(&self, platform: &Platform, actor: &'static str) -> Platform {
        let meter = Meter {
            counts: self.clone(),
            actor,
        };
        Platform {
            records: Arc::new(records::Counted::new(
                Arc::clone(&platform.records),
                meter.clone(),
            )),
            blobs: Arc::new(blobs::Counted::new(
                Arc::clone(&platform.blobs),
                meter.clone(),
            )),
            queue: Arc::new(queue::Counted::new(Arc::clone(&platform.queue), meter)),
            clock: Arc::clone(&platform.clock),
            random: Arc::clone(&platform.random),
        }
    }

    /// Adds calls that no port sees.
    pub fn add(&self, actor: &'static str, operation: Operation, calls: u64, units: f64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = counts.entry((actor, operation)).or_default();
        tally.calls += calls;
        tally.units += units;
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn read(&self) -> BTreeMap<Entry, Tally> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Counts for one actor.
#[derive(Debug, Clone)]
struct Meter {
    counts: Counts,
    actor: &'static str,
}

impl Meter {
    fn add(&self, operation: Operation, calls: u64, units: f64) {
        self.counts.add(self.actor, operation, calls, units);
    }

    fn one(&self, operation: Operation) {
        self.add(operation, 1, 1.0);
    }
}
