//! Turns a plan into the flat arrays that a backend uploads.
//!
//! Decides nothing: every number follows from the plan.

use std::collections::BTreeMap;

use super::plan::{Plan, RowToken, Run};
use crate::backend::{PageTable, ShareGroup, SlotReset, StepInputs, StepSequence};

/// Fewer members than this gain nothing from reading their prefix together.
const SHARE_MEMBERS_MIN: usize = 8;
/// Nor does a prefix shorter than this.
const SHARE_TOKENS_MIN: usize = 256;

/// Returns the inputs of the step that `plan` describes.
pub(super) fn step_inputs(plan: &Plan, page_tokens: usize) -> StepInputs {
    let mut inputs = StepInputs::default();
    let mut table = PageTable {
        starts: vec![0],
        ..PageTable::default()
    };
    for run in plan.runs() {
        push_run(run, page_tokens, &mut inputs, &mut table);
    }
    inputs.logit_rows = inputs.sequences[..plan.sampled.len()]
        .iter()
        .map(|sequence| sequence.q_start + sequence.q_len - 1)
        .collect();
    inputs.share_groups = share_groups(plan, page_tokens);
    inputs.page_tables = vec![table];
    inputs.bucket = inputs.exact_bucket();
    inputs
}

fn push_run(run: &Run, page_tokens: usize, inputs: &mut StepInputs, table: &mut PageTable) {
    inputs.sequences.push(StepSequence {
        slot: run.slot,
        q_start: index(inputs.tokens.len()),
        q_len: index(run.tokens.len()),
        kv_len: index(run.end()),
    });
    for (offset, token) in run.tokens.iter().enumerate() {
        let position = run.start + offset;
        inputs.tokens.push(match token {
            RowToken::Known(token) => *token,
            RowToken::Last => StepInputs::LAST | run.slot,
        });
        inputs.positions.push(index(position));
        let page = run.pages[position / page_tokens];
        table
            .write_slots
            .push(page * index(page_tokens) + index(position % page_tokens));
    }
    table.pages.extend_from_slice(&run.pages);
    table.starts.push(index(table.pages.len()));
    if let Some(restore) = &run.restore {
        inputs.resets.push(SlotReset {
            slot: run.slot,
            prompt: restore.prompt.to_vec(),
            output: restore.output.clone(),
        });
    }
}

/// Groups the sequences that begin with the same page, by the pages that all of them share.
///
/// A page in two tables is complete since an earlier step: no row of this step writes to it.
fn share_groups(plan: &Plan, page_tokens: usize) -> Vec<ShareGroup> {
    let mut by_first_page: BTreeMap<u32, Vec<(usize, &Run)>> = BTreeMap::new();
    for (index, run) in plan.runs().enumerate() {
        if let Some(first) = run.pages.first() {
            by_first_page.entry(*first).or_default().push((index, run));
        }
    }
    let mut groups = Vec::new();
    for members in by_first_page.into_values() {
        if members.len() < SHARE_MEMBERS_MIN {
            continue;
        }
        let model = &members[0].1.pages;
        let pages = members
            .iter()
            .map(|(_, run)| common_prefix(model, &run.pages))
            .min()
            .unwrap_or(0);
        if pages * page_tokens >= SHARE_TOKENS_MIN {
            groups.push(ShareGroup {
                pages: index(pages),
                members: members.iter().map(|(member, _)| index(*member)).collect(),
            });
        }
    }
    groups
}

fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter()
        .zip(right)
        .take_while(|(left, right)| left == right)
        .count()
}

fn index(count: usize) -> u32 {
    u32::try_from(count).expect("a step is counted in 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::{PartialPrefill, Restore, SampledRun};
    use crate::engine::sequence::SequenceId;
    use expect_test::expect;

    fn run(id: u64, start: usize, tokens: &[RowToken], pages: &[u32]) -> Run {
        Run {
            id: SequenceId(id),
            stay: id,
            slot: id as u32,
            start,
            tokens: tokens.to_vec(),
            pages: pages.to_vec(),
            restore: None,
        }
    }

    #[test]
    fn rows_follow_the_plan() {
        let decode = run(1, 5, &[RowToken::Last], &[7, 3]);
        let mut chunk = run(2, 0, &[RowToken::Known(40), RowToken::Known(41)], &[2]);
        chunk.restore = Some(Restore {
            prompt: [40, 41, 42].into(),
            output: vec![],
        });
        let plan = Plan {
            sampled: vec![SampledRun {
                run: decode,
                output_index: 0,
            }],
            partial: vec![PartialPrefill { run: chunk }],
        };
        let inputs = step_inputs(&plan, 4);
        let shown = format!(
            "tokens {:x?}\npositions {:?}\n{:?}\n{:?}\nlogit rows {:?}\n{:?}\n{:?}\n",
            inputs.tokens,
            inputs.positions,
            inputs.sequences,
            inputs.page_tables,
            inputs.logit_rows,
            inputs.resets,
            inputs.bucket
        );
        expect![[r#"
            tokens [80000001, 28, 29]
            positions [5, 0, 1]
            [StepSequence { slot: 1, q_start: 0, q_len: 1, kv_len: 6 }, StepSequence { slot: 2, q_start: 1, q_len: 2, kv_len: 2 }]
            [PageTable { pages: [7, 3, 2], starts: [0, 2, 3], write_slots: [13, 8, 9] }]
            logit rows [0]
            [SlotReset { slot: 2, prompt: [40, 41, 42], output: [] }]
            Bucket { rows: 3, sequences: 2, logit_rows: 1 }
        "#]].assert_eq(&shown);
    }

    #[test]
    fn long_prefix_of_many_is_a_share_group() {
        let shared: Vec<u32> = (0..16).collect();
        let sampled = (0..9)
            .map(|id| {
                let mut pages = shared.clone();
                pages.push(100 + id as u32);
                SampledRun {
                    run: run(id, 260, &[RowToken::Last], &pages),
                    output_index: 0,
                }
            })
            .collect();
        let mut plan = Plan {
            sampled,
            partial: vec![],
        };
        let groups = step_inputs(&plan, 16).share_groups;
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].pages, groups[0].members.len()), (16, 9));
        plan.sampled.truncate(7);
        assert!(step_inputs(&plan, 16).share_groups.is_empty());
    }
}
