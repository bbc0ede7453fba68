//! The order in which new sequences start: depth first over their common prefixes, the longest output first.
//!
//! Neighbours in that order share the most pages, which are in the cache while both run. Where prompts part,
//! the subtree with the longest expected output goes first: a long output that starts last runs alone at the
//! end of the file, and a short one fills the gaps. Never changes a result.

use std::cmp::{Ordering, Reverse};

/// What the order depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    /// The tenant: nothing is shared across two.
    pub(crate) salt: u64,
    /// The prompt's tokens.
    pub(crate) prompt: &'a [u32],
    /// Tokens of output expected.
    pub(crate) expected: usize,
}

/// A leaf or an inner node, as its parent orders it.
#[derive(Debug, Clone, Copy)]
struct Child {
    /// The longest output expected in the subtree. Not the sum: many short ones run beside each other.
    longest: usize,
    /// The first candidate of the subtree.
    first: usize,
    target: Target,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Leaf,
    Node(usize),
}

/// A node that still gets children.
#[derive(Debug)]
struct OpenNode {
    /// What its candidates have in common: 0 nothing, else 1 for the salt and 1 for each full page.
    level: usize,
    children: Vec<Child>,
}

/// Returns the indices of the candidates in the order of their starts; among equals, the given order stays.
///
/// Sorts once by prompt, then builds the tree of common prefixes in one pass over neighbours: `n log n`
/// comparisons of prompts, each as long as what the two have in common. No recursion.
pub(crate) fn depth_first(candidates: &[Candidate<'_>], page_tokens: usize) -> Vec<usize> {
    let mut by_prompt: Vec<usize> = (0..candidates.len()).collect();
    by_prompt.sort_by(|&left, &right| by_prefix(candidates[left], candidates[right]));
    let mut nodes: Vec<Vec<Child>> = Vec::new();
    let mut open = vec![OpenNode {
        level: 0,
        children: Vec::new(),
    }];
    for (position, &index) in by_prompt.iter().enumerate() {
        let mut child = Child {
            longest: candidates[index].expected,
            first: index,
            target: Target::Leaf,
        };
        let level = match by_prompt.get(position + 1) {
            Some(&next) => common_level(candidates[index], candidates[next], page_tokens),
            None => 0,
        };
        // The candidate belongs to the deepest node of what it shares with either neighbour.
        if level > top(&mut open).level {
            open.push(OpenNode {
                level,
                children: Vec::new(),
            });
        }
        top(&mut open).children.push(child);
        while level < top(&mut open).level {
            child = close(&mut open, &mut nodes);
            if level > top(&mut open).level {
                open.push(OpenNode {
                    level,
                    children: Vec::new(),
                });
            }
            top(&mut open).children.push(child);
        }
    }
    walk(std::mem::take(&mut top(&mut open).children), &mut nodes)
}

fn top(open: &mut [OpenNode]) -> &mut OpenNode {
    open.last_mut()
        .expect("the root, of level 0, is never closed")
}

/// Closes the deepest open node and returns it as a child.
fn close(open: &mut Vec<OpenNode>, nodes: &mut Vec<Vec<Child>>) -> Child {
    let OpenNode { children, .. } = open.pop().expect("a node above the root is open");
    let child = Child {
        longest: children
            .iter()
            .map(|child| child.longest)
            .max()
            .unwrap_or(0),
        first: children.iter().map(|child| child.first).min().unwrap_or(0),
        target: Target::Node(nodes.len()),
    };
    nodes.push(children);
    child
}

/// Returns the leaves below `root`, depth first.
fn walk(root: Vec<Child>, nodes: &mut [Vec<Child>]) -> Vec<usize> {
    let mut order = Vec::new();
    let mut pending = Vec::new();
    let enter = |mut children: Vec<Child>, pending: &mut Vec<Child>| {
        // The next one is popped from the end.
        children.sort_unstable_by_key(|child| (child.longest, Reverse(child.first)));
        pending.append(&mut children);
    };
    enter(root, &mut pending);
    while let Some(child) = pending.pop() {
        match child.target {
            Target::Leaf => order.push(child.first),
            Target::Node(node) => enter(std::mem::take(&mut nodes[node]), &mut pending),
        }
    }
    order
}

fn common_level(left: Candidate<'_>, right: Candidate<'_>, page_tokens: usize) -> usize {
    if left.salt != right.salt {
        return 0;
    }
    1 + common_tokens(left.prompt, right.prompt) / page_tokens
}

fn by_prefix(left: Candidate<'_>, right: Candidate<'_>) -> Ordering {
    let after_common = |candidate: Candidate<'_>, common| candidate.prompt.get(common).copied();
    left.salt.cmp(&right.salt).then_with(|| {
        let common = common_tokens(left.prompt, right.prompt);
        after_common(left, common).cmp(&after_common(right, common))
    })
}

/// Returns how many tokens two prompts begin with in common.
fn common_tokens(left: &[u32], right: &[u32]) -> usize {
    // Slices are compared many tokens at a time, and shared prefixes are long.
    const BLOCK: usize = 64;
    let blocks = left.chunks_exact(BLOCK).zip(right.chunks_exact(BLOCK));
    let start = BLOCK * blocks.take_while(|(left, right)| left == right).count();
    let rest = left[start..].iter().zip(&right[start..]);
    start + rest.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE_TOKENS: usize = 2;

    fn order(candidates: &[(u64, &[u32], usize)]) -> Vec<usize> {
        let candidates: Vec<Candidate<'_>> = candidates
            .iter()
            .map(|(salt, prompt, expected)| Candidate {
                salt: *salt,
                prompt,
                expected: *expected,
            })
            .collect();
        depth_first(&candidates, PAGE_TOKENS)
    }

    #[test]
    fn prompts_without_a_common_page_start_the_longest_first() {
        assert_eq!(order(&[]), [0usize; 0]);
        assert_eq!(
            order(&[(0, &[9], 5), (0, &[1, 2], 7), (0, &[1, 3], 6), (0, &[4], 7)]),
            [1, 3, 2, 0]
        );
    }

    #[test]
    fn common_prefixes_are_adjacent_and_a_group_goes_by_its_longest() {
        let candidates: [(u64, &[u32], usize); 6] = [
            (0, &[1, 1, 5], 2),
            (0, &[7], 8),
            (0, &[1, 1, 6], 9),
            (0, &[8], 10),
            (1, &[1, 1, 5], 3),
            (0, &[1, 1, 5, 5, 5], 4),
        ];
        assert_eq!(order(&candidates), [3, 2, 5, 0, 1, 4]);
    }

    #[test]
    fn deeper_prefixes_are_adjacent_within_shallower_ones() {
        let candidates: [(u64, &[u32], usize); 5] = [
            (0, &[1, 1, 2, 2, 3], 1),
            (0, &[1, 1, 9, 9], 5),
            (0, &[1, 1, 2, 2, 4], 9),
            (0, &[1, 1, 9, 9, 1], 6),
            (0, &[1, 1, 3], 7),
        ];
        assert_eq!(order(&candidates), [2, 0, 4, 3, 1]);
    }

    fn pages(candidate: &(u64, Vec<u32>, usize)) -> Vec<&[u32]> {
        candidate.1.chunks_exact(PAGE_TOKENS).collect()
    }

    #[test]
    fn common_tokens_are_counted_within_and_across_blocks() {
        let long: Vec<u32> = (0..200).collect();
        for at in [0, 1, 63, 64, 65, 128, 199] {
            let mut other = long.clone();
            other[at] = 999;
            assert_eq!(common_tokens(&long, &other), at);
            assert_eq!(common_tokens(&long[..at], &long), at);
        }
        assert_eq!(common_tokens(&long, &long), 200);
    }

    proptest! {
        #[test]
        fn all_come_once_and_those_with_a_common_prefix_together(
            candidates in prop::collection::vec(
                (0u64..2, prop::collection::vec(0u32..2, 1..12), 1usize..9),
                0..30,
            )
        ) {
            let borrowed: Vec<(u64, &[u32], usize)> =
                candidates.iter().map(|(s, p, e)| (*s, p.as_slice(), *e)).collect();
            let order = order(&borrowed);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..candidates.len()).collect::<Vec<_>>());
            for candidate in &candidates {
                for depth in 0..=pages(candidate).len() {
                    let kin = |index: &&usize| {
                        let other = &candidates[**index];
                        other.0 == candidate.0
                            && pages(other).starts_with(&pages(candidate)[..depth])
                    };
                    let from_first = order.iter().skip_while(|index| !kin(index));
                    let run = from_first.take_while(kin).count();
                    prop_assert_eq!(run, order.iter().filter(kin).count());
                }
            }
        }
    }
}
