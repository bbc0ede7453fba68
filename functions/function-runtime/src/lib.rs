//! What the Lambda mains of all functions share: the start, the log, the events, the end, and metrics.
//!
//! [`run`] starts a program, [`Function`] is what it then has, and [`serve_events`], its kin or [`drive`] take
//! events until the process is told to stop. A main adds which handler gets what. Nothing here knows what a
//! handler does, and nothing is looked up before the first event: a cold start builds clients, no more.
#![warn(missing_docs)]

mod event;
mod function;
mod inbox;
mod logging;
pub mod metrics;
mod serve;
mod start;
mod survive;

pub use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
pub use event::{Event, UnknownEvent};
pub use function::Function;
pub use inbox::{Inbox, Ticket};
pub use serve::{Failure, Invocation, drive, serve_events, serve_json};
pub use start::run;
pub use survive::survive;
