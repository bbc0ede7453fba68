//! What a second start finds, wherever the first was killed.

use std::path::PathBuf;

use batch_core::batch::TokenCounts;
use batch_core::id::{BatchId, LineNo};
use batch_core::time::UnixMs;
use tempfile::TempDir;

use super::Journal;

fn run(number: u8) -> BatchId {
    BatchId::new(UnixMs(1_790_000_000_000), [number; 16])
}

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("answers.resume.jsonl")
    }

    fn open(&self, fingerprint: &str) -> anyhow::Result<Journal> {
        Journal::open(&self.path(), fingerprint, run(1))
    }

    /// Writes a journal with the lines 1 to 3, and returns its bytes.
    fn written(&self) -> Vec<u8> {
        let mut journal = self.open("a").expect("begin");
        for line in 1..=3 {
            let record = format!("{{\"line\":{line}}}");
            journal
                .add(
                    LineNo(line),
                    line != 2,
                    TokenCounts::default(),
                    record.as_bytes(),
                )
                .expect("add");
        }
        std::fs::read(self.path()).expect("read the journal")
    }
}

fn lines(journal: &Journal) -> Vec<u64> {
    journal.places.keys().map(|line| line.0).collect()
}

#[test]
fn results_are_found_whole_or_not_at_all_when_the_file_is_cut_anywhere() {
    let bench = Bench::new();
    let bytes = bench.written();
    let mut found = Vec::new();
    for cut in 0..=bytes.len() {
        std::fs::write(bench.path(), &bytes[..cut]).expect("cut");
        let mut journal = bench.open("a").expect("open what was cut");
        let before = lines(&journal);
        assert_eq!(before, (1..=before.len() as u64).collect::<Vec<_>>());
        journal
            .add(LineNo(9), true, TokenCounts::default(), b"{}")
            .expect("go on");
        drop(journal);
        let again = bench.open("a").expect("open again");
        assert_eq!(
            lines(&again),
            [before.clone(), vec![9]].concat(),
            "cut at {cut}"
        );
        found.push(before.len());
    }
    assert!(found.is_sorted());
    assert_eq!(found.last(), Some(&3));
}

#[test]
fn run_keeps_its_name_when_it_goes_on() {
    let bench = Bench::new();
    drop(bench.written());
    let journal = Journal::open(&bench.path(), "a", run(2)).expect("open");
    assert_eq!(journal.run(), run(1));
}

#[test]
fn journal_is_refused_and_left_alone_when_it_is_not_of_this_run() {
    let check = |content: &[u8], fingerprint: &str, says: &str| {
        let bench = Bench::new();
        std::fs::write(bench.path(), content).expect("write");
        let refused = bench.open(fingerprint).err().expect("refused").to_string();
        assert!(refused.contains(says), "{refused}");
        assert_eq!(std::fs::read(bench.path()).expect("read"), content);
    };
    let bytes = Bench::new().written();
    check(&bytes, "b", "another input, model or precision");
    check(b"{\"custom_id\":\"a\"}\n", "a", "not a resume file");
    check(b"a file without a line end", "a", "not a resume file");
}

#[test]
fn journal_is_left_only_when_it_has_results() {
    let bench = Bench::new();
    bench.open("a").expect("begin").leave().expect("leave");
    assert!(!bench.path().exists());
    drop(bench.written());
    bench.open("a").expect("open").leave().expect("leave");
    assert!(bench.path().exists());
}

#[test]
fn second_run_is_refused_while_the_first_is_at_work() {
    let bench = Bench::new();
    let first = bench.open("a").expect("begin");
    let refused = bench.open("a").err().expect("refused").to_string();
    assert!(refused.contains("in use"), "{refused}");
    drop(first);
    assert!(bench.open("a").is_ok());
}
