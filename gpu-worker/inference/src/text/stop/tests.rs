use super::*;
use proptest::prelude::*;

/// Tokens are indices into a list of byte strings; ids past it are special.
struct Pieces(Vec<Vec<u8>>);

impl TokenText for Pieces {
    fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.get(id as usize).map_or(b"<special>", Vec::as_slice)
    }

    fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids
            .iter()
            .filter(|id| !self.is_special(**id))
            .flat_map(|id| self.0[*id as usize].clone())
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn is_special(&self, id: u32) -> bool {
        id as usize >= self.0.len()
    }
}

/// Pushes `pieces` until one ends the text; returns the text, the tokens taken, and the contributing ones.
fn run(pieces: &[&[u8]], stop: &[&str]) -> (String, usize, Vec<usize>) {
    let stop: Vec<Vec<u8>> = stop.iter().map(|stop| stop.as_bytes().to_vec()).collect();
    let text = Pieces(pieces.iter().map(|piece| piece.to_vec()).collect());
    let mut watched = StopText::new(&stop);
    let mut taken = 0;
    for index in 0..pieces.len() {
        taken += 1;
        if watched.push(index, index as u32, &text) {
            break;
        }
    }
    (watched.text(&text), taken, watched.contributing().collect())
}

fn check(pieces: &[&[u8]], stop: &[&str], text: &str, taken: usize, contributing: &[usize]) {
    let result = run(pieces, stop);
    assert_eq!(result, (text.to_owned(), taken, contributing.to_vec()));
}

#[test]
fn text_is_whole_when_nothing_stops_it() {
    check(&[b"a", b"b"], &[], "ab", 2, &[0, 1]);
    check(&[b"a", b"b"], &["", "c"], "ab", 2, &[0, 1]);
}

#[test]
fn match_across_tokens_is_cut_at_its_first_byte() {
    check(
        &[b"one ST", b"O", b"P two", b"never"],
        &["STOP"],
        "one ",
        3,
        &[0],
    );
    check(&[b"x", b"ab", b"c"], &["abc"], "x", 3, &[0]);
}

#[test]
fn earliest_start_wins_when_one_token_completes_two() {
    check(&[b"zabcdef"], &["cd", "abcdef"], "z", 1, &[0]);
}

#[test]
fn first_completed_match_ends_the_text_before_a_longer_one() {
    check(&[b"abcd", b"ef"], &["cd", "abcdef"], "ab", 1, &[0]);
}

#[test]
fn overlapping_prefix_is_not_lost() {
    check(&[b"aa", b"a", b"b"], &["aab"], "a", 3, &[0]);
}

#[test]
fn split_character_matches_by_bytes() {
    let euro = "\u{20ac}".as_bytes();
    check(
        &[b"5", &euro[..1], &euro[1..], b"!"],
        &["\u{20ac}"],
        "5",
        3,
        &[0],
    );
    check(&[b"5", &euro[..1]], &["!"], "5\u{fffd}", 2, &[0, 1]);
}

#[test]
fn token_that_is_cut_in_part_still_contributes() {
    check(&[b"ab", b"c|d"], &["|"], "abc", 2, &[0, 1]);
}

#[test]
fn special_token_contributes_nothing() {
    let text = Pieces(vec![b"a".to_vec()]);
    let mut watched = StopText::new(&[b"special".to_vec()]);
    assert!(!watched.push(0, 9, &text));
    assert!(!watched.push(1, 0, &text));
    assert_eq!(watched.text(&text), "a");
    assert_eq!(watched.contributing().collect::<Vec<_>>(), [1]);
}

proptest! {
    #[test]
    fn cut_is_that_of_a_naive_search(
        pieces in prop::collection::vec(prop::collection::vec(prop::sample::select(b"ab".to_vec()), 0..4), 0..20),
        stop in prop::collection::vec("[ab]{1,4}", 1..4),
    ) {
        let mut bytes: Vec<u8> = Vec::new();
        let mut naive = None;
        for piece in &pieces {
            bytes.extend_from_slice(piece);
            naive = stop
                .iter()
                .filter_map(|stop| bytes.windows(stop.len()).position(|window| window == stop.as_bytes()))
                .min();
            if naive.is_some() {
                break;
            }
        }
        bytes.truncate(naive.unwrap_or(bytes.len()));
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let stop: Vec<&str> = stop.iter().map(String::as_str).collect();
        let (text, _, _) = run(&pieces, &stop);
        prop_assert_eq!(text.as_bytes(), bytes.as_slice());
    }
}
