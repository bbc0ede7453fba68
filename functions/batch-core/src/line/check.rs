//! Checks a whole file, line by line: parsing, duplicates, limits, and the list of errors.

use super::duplicates::IdSet;
use super::parse::{Line, Parsed, parse};
use super::problem::{self, Problems};
use super::split::RawLine;
use crate::batch::{Endpoint, ValidationError};
use crate::catalog::Catalog;
use crate::id::LineNo;

/// Checks the lines of one file in their order.
#[derive(Debug)]
pub struct Checker<'c> {
    endpoint: Endpoint,
    catalog: &'c Catalog,
    lines_max: u64,
    ids: IdSet,
    problems: Problems,
    requests: u64,
}

impl<'c> Checker<'c> {
    /// Starts a file. `key` is random: see [`IdSet`].
    #[must_use]
    pub fn new(endpoint: Endpoint, catalog: &'c Catalog, lines_max: u64, key: [u8; 16]) -> Self {
        Self {
            endpoint,
            catalog,
            lines_max,
            ids: IdSet::new(key),
            problems: Problems::default(),
            requests: 0,
        }
    }

    /// Checks the next line and returns it if it is sound; its errors are kept.
    pub fn check<'a>(&mut self, no: LineNo, raw: RawLine<'a>) -> Option<Line<'a>>
    where
        'c: 'a,
    {
        let parsed = match raw {
            RawLine::Whole(bytes) => parse(bytes, no, self.endpoint, self.catalog),
            RawLine::TooLong { bytes } => Parsed::Bad {
                custom_id: None,
                errors: vec![problem::line_too_long(no, bytes)],
            },
        };
        match parsed {
            Parsed::Blank => None,
            Parsed::Good(line) => {
                self.requests += 1;
                self.is_new(no, &line.custom_id).then_some(line)
            }
            Parsed::Bad { custom_id, errors } => {
                self.requests += 1;
                if let Some(custom_id) = custom_id {
                    self.is_new(no, &custom_id);
                }
                errors
                    .into_iter()
                    .for_each(|error| self.problems.push(error));
                None
            }
        }
    }

    /// Returns the requests so far, sound or not.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns whether every line so far is sound: if not, lines need no more storing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.requests <= self.lines_max
    }

    /// Ends the file and returns how many requests it has.
    ///
    /// # Errors
    ///
    /// All errors, ready to be shown: the file's own first.
    pub fn finish(self) -> Result<u64, Vec<ValidationError>> {
        let mut errors = Vec::new();
        if self.requests == 0 {
            errors.push(problem::empty_file());
        }
        if self.requests > self.lines_max {
            errors.push(problem::too_many_requests(self.requests, self.lines_max));
        }
        errors.extend(self.problems.into_errors());
        if errors.is_empty() {
            Ok(self.requests)
        } else {
            Err(errors)
        }
    }

    /// Ids beyond the limit are not kept: memory stays bounded, and the file fails anyway.
    fn is_new(&mut self, no: LineNo, custom_id: &[u8]) -> bool {
        let new = self.requests > self.lines_max || self.ids.insert(custom_id);
        if !new {
            self.problems.push(problem::duplicate(no, custom_id));
        }
        new
    }
}
