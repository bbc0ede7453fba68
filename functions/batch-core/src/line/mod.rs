//! Reads input files: splits bytes into lines, checks every line, collects what is wrong.
//!
//! Sans-IO and strict about memory: whatever the input is, a reader holds one line at most, and scanning
//! is linear, iterative and allocates nothing for a good line. [`check::Checker`] is all of it in one.

pub mod check;
pub mod duplicates;
pub mod problem;
pub mod split;

mod body;
mod envelope;
mod json;
mod parse;
mod readdress;

pub use envelope::{Request, open};
pub use parse::{Line, Parsed, PromptKey, parse};
pub use readdress::{Unsendable, readdress};

#[cfg(test)]
mod tests;
