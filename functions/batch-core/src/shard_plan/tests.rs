use super::*;

/// What a line can be: model slot, bytes, prompt.
const KINDS: [(u16, usize, &str); 6] = [
    (0, 10, "a"),
    (0, 10, "b"),
    (0, SHARD_BYTES_MAX / 2, "a"),
    (0, SHARD_BYTES_MAX + 1, "b"),
    (1, 10, "a"),
    (1, SHARD_BYTES_MAX / 2, "b"),
];

fn line(number: u64, (slot, bytes, prompt): (u16, usize, &'static str)) -> WindowLine<'static> {
    let prompt = PromptKey {
        instructions: "",
        prompt,
    };
    WindowLine {
        line: LineNo(number),
        slot,
        bytes,
        estimated_tokens: 30,
        prompt,
    }
}

/// Plans `lines` and returns the ordinals of each shard's lines, after checking what holds for every plan.
fn plan(lines: &[WindowLine<'_>], rule: TimeRule) -> Vec<Vec<u32>> {
    let drafts = plan_window(lines, |_| rule);
    let of = |index: &u32| &lines[*index as usize];
    let mut all: Vec<u32> = drafts
        .iter()
        .flat_map(|draft| draft.lines.clone())
        .collect();
    let keys: Vec<_> = all
        .iter()
        .map(|index| (of(index).slot, of(index).prompt, of(index).line))
        .collect();
    assert!(keys.is_sorted(), "{lines:?}");
    all.sort_unstable();
    assert_eq!(
        all,
        (0..u32::try_from(lines.len()).unwrap()).collect::<Vec<_>>(),
        "{lines:?}"
    );
    for draft in &drafts {
        assert!(draft.lines.iter().all(|index| of(index).slot == draft.slot));
        assert_eq!(
            draft.bytes,
            draft
                .lines
                .iter()
                .map(|index| of(index).bytes)
                .sum::<usize>()
        );
        assert_eq!(
            draft.estimated_tokens,
            draft
                .lines
                .iter()
                .map(|index| of(index).estimated_tokens)
                .sum::<u64>()
        );
        assert!(draft.lines.len() == 1 || draft.bytes <= SHARD_BYTES_MAX);
        assert!((1..=SHARD_LINES_MAX).contains(&draft.lines.len()));
    }
    for pair in drafts.windows(2) {
        let next = of(&pair[1].lines[0]);
        let is_full = pair[0].bytes + next.bytes > SHARD_BYTES_MAX
            || pair[0].lines.len() == SHARD_LINES_MAX
            || rule
                .tokens_max
                .is_some_and(|max| pair[0].estimated_tokens + next.estimated_tokens > max);
        assert!(
            pair[0].slot != next.slot || is_full,
            "closed for no reason: {lines:?}"
        );
    }
    drafts.into_iter().map(|draft| draft.lines).collect()
}

#[test]
fn each_line_is_in_one_shard_in_all_files_of_up_to_seven_lines() {
    let kinds = KINDS.len();
    for count in 0..=7_u32 {
        for file in 0..kinds.pow(count) {
            let kind = |place: u32| KINDS[file / kinds.pow(place) % kinds];
            let lines: Vec<_> = (0..count)
                .map(|place| line(u64::from(place) + 1, kind(place)))
                .collect();
            plan(&lines, TimeRule::default());
            if count <= 5 {
                plan(
                    &lines,
                    TimeRule {
                        tokens_max: Some(70),
                        bytes_min: 0,
                    },
                );
            }
        }
    }
}

#[test]
fn lines_with_a_common_prompt_are_neighbours() {
    let lines: Vec<_> = (0..6)
        .map(|n| line(n + 1, KINDS[usize::try_from(n).unwrap() % 2]))
        .collect();
    assert_eq!(plan(&lines, TimeRule::default()), [[0, 2, 4, 1, 3, 5]]);
}

#[test]
fn shard_closes_at_500_lines() {
    let lines: Vec<_> = (0..1_001).map(|n| line(n + 1, KINDS[0])).collect();
    let lengths: Vec<_> = plan(&lines, TimeRule::default())
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(lengths, [500, 500, 1]);
}

#[test]
fn line_over_the_limit_is_a_shard_alone() {
    let lines = [
        line(1, KINDS[0]),
        line(2, (0, SHARD_BYTES_MAX + 1, "a")),
        line(3, (0, 10, "a")),
    ];
    assert_eq!(plan(&lines, TimeRule::default()), [[0], [1], [2]]);
}

#[test]
fn shard_closes_when_it_would_take_too_long() {
    let lines: Vec<_> = (0..5).map(|n| line(n + 1, KINDS[0])).collect();
    let lengths = |rule| plan(&lines, rule).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(
        lengths(TimeRule {
            tokens_max: Some(60),
            bytes_min: 0
        }),
        [2, 2, 1]
    );
    assert_eq!(
        lengths(TimeRule {
            tokens_max: Some(1),
            bytes_min: 0
        }),
        [1, 1, 1, 1, 1]
    );
    assert_eq!(
        lengths(TimeRule {
            tokens_max: Some(1),
            bytes_min: 21
        }),
        [3, 2]
    );
    assert_eq!(
        lengths(TimeRule {
            tokens_max: None,
            bytes_min: 0
        }),
        [5]
    );
}

#[test]
fn time_rule_is_two_minutes_and_a_ten_thousandth_of_the_file() {
    assert_eq!(
        TimeRule::new(Some(50), 200_000_000),
        TimeRule {
            tokens_max: Some(6_000),
            bytes_min: 20_000
        }
    );
    assert_eq!(
        TimeRule::new(None, 9_999),
        TimeRule {
            tokens_max: None,
            bytes_min: 0
        }
    );
}
