//! What must hold for every batch at every moment, whatever happens to it.

use std::collections::HashMap;

use serde_json::Value;

use crate::client::{Client, Results};

/// The counts of a batch as they were last seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines in all; 0 until validation is over.
    pub total: u64,
    /// Lines in the output file.
    pub completed: u64,
    /// Lines in the error file.
    pub failed: u64,
}

impl Counts {
    /// Reads the counts of a batch object.
    ///
    /// # Panics
    ///
    /// If it has none.
    #[must_use]
    pub fn of(batch: &Value) -> Self {
        let count = |name: &str| {
            batch["request_counts"][name]
                .as_u64()
                .expect("a batch always has its counts")
        };
        Self {
            total: count("total"),
            completed: count("completed"),
            failed: count("failed"),
        }
    }

    /// Takes a later look at the batch: no count may have gone down, the total may not change once it is known,
    /// and no more lines may be done than there are.
    ///
    /// # Panics
    ///
    /// If that does not hold.
    #[track_caller]
    pub fn follow(&mut self, batch: &Value) {
        let now = Self::of(batch);
        let known = self.total == 0 || self.total == now.total;
        assert!(known, "the total went from {} to {}", self.total, now.total);
        let forward = now.completed >= self.completed && now.failed >= self.failed;
        assert!(forward, "counts went back: {self:?}, then {now:?}");
        assert!(
            now.completed + now.failed <= now.total,
            "more done than there is: {now:?}"
        );
        *self = now;
    }
}

/// Downloads both files of an ended batch and proves them complete: every id of the input exactly once, each file
/// in input order, none empty, as many lines as the counts say, no error line without a message (reports 25, 53,
/// 55, 57, 115).
///
/// # Panics
///
/// If that does not hold.
#[track_caller]
pub fn check_complete(batch: &Value, results: &Results, input: &[String]) {
    let counts = Counts::of(batch);
    assert_eq!(counts.total, input.len() as u64, "{batch}");
    assert_eq!(counts.completed + counts.failed, counts.total, "{batch}");
    assert_eq!(
        counts.completed,
        results.output.len() as u64,
        "the output file against {counts:?}"
    );
    assert_eq!(
        counts.failed,
        results.errors.len() as u64,
        "the error file against {counts:?}"
    );
    assert_eq!(
        batch["output_file_id"].is_null(),
        results.output.is_empty(),
        "{batch}"
    );
    assert_eq!(
        batch["error_file_id"].is_null(),
        results.errors.is_empty(),
        "{batch}"
    );
    let place: HashMap<&str, usize> = input
        .iter()
        .enumerate()
        .map(|(at, id)| (id.as_str(), at))
        .collect();
    let mut seen = vec![false; input.len()];
    for ids in [results.output_ids(), results.error_ids()] {
        let places: Vec<usize> = ids.iter().map(|id| place[id.as_str()]).collect();
        assert!(places.is_sorted(), "not in input order: {ids:?}");
        for at in places {
            assert!(
                !std::mem::replace(&mut seen[at], true),
                "{} is there twice",
                input[at]
            );
        }
    }
    assert!(seen.iter().all(|seen| *seen), "ids are missing");
    for record in &results.output {
        assert_eq!(record["response"]["status_code"], 200, "{record}");
        assert!(record["error"].is_null(), "{record}");
    }
    for record in &results.errors {
        let error = if record["response"].is_null() {
            &record["error"]
        } else {
            assert!(
                record["response"]["status_code"].as_u64() >= Some(400),
                "{record}"
            );
            &record["response"]["body"]["error"]
        };
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{record}"
        );
    }
}

/// As [`check_complete`], with the download.
///
/// # Panics
///
/// If a file does not download, or if that does not hold.
pub async fn complete(client: &Client, batch: &Value, input: &[String]) -> Results {
    let results = client
        .results(batch)
        .await
        .expect("download the result files");
    check_complete(batch, &results, input);
    results
}

/// Checks that every line of the error file is one that never ran, for the reason `code`.
///
/// # Panics
///
/// If not.
#[track_caller]
pub fn check_unexecuted(results: &Results, code: &str) {
    for record in &results.errors {
        assert!(record["response"].is_null(), "{record}");
        assert_eq!(record["error"]["code"], code, "{record}");
    }
}
