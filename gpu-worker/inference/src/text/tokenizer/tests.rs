//! The same small tokenizer from GGUF metadata and from JSON.

use super::super::gguf_tokenizer::TokenKind;
use super::*;

const JSON: &str = include_str!("../../../tests/data/tiny/tokenizer.json");
const MERGES: [&str; 7] = ["Ġ t", "h e", "Ġt he", "i n", "a n", "an d", "r e"];

fn json() -> Tokenizer {
    Tokenizer::from_json(JSON.as_bytes()).unwrap()
}

fn tokens() -> Vec<String> {
    let printable = (0x21..0x7F_u8).map(|byte| char::from(byte).to_string());
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", "Ċ"].map(str::to_owned);
    let merged = MERGES.map(|merge| merge.replace(' ', ""));
    specials
        .into_iter()
        .chain(printable)
        .chain(merged)
        .chain(["<tool>".to_owned()])
        .collect()
}

/// Makes a tokenizer of GGUF metadata, changed by `change`.
fn gguf(change: impl FnOnce(&mut GgufVocabulary<'_>)) -> Result<Tokenizer, TokenizerError> {
    let tokens = tokens();
    let kind = |(id, text): (usize, &String)| match text.as_str() {
        _ if id < 3 => TokenKind::Control,
        "<tool>" => TokenKind::UserDefined,
        _ => TokenKind::Normal,
    };
    let mut vocabulary = GgufVocabulary {
        model: "gpt2",
        pre: "gpt-2",
        tokens: tokens.iter().map(String::as_str).collect(),
        kinds: tokens.iter().enumerate().map(kind).collect(),
        merges: MERGES.to_vec(),
        add_space_prefix: false,
    };
    change(&mut vocabulary);
    Tokenizer::from_gguf(&vocabulary)
}

/// Encodes with both, and shows the tokens.
fn check(text: &str, specials: Specials, expected: &[&str]) {
    for tokenizer in [json(), gguf(|_| {}).unwrap()] {
        let ids = tokenizer.encode(text, specials);
        assert_eq!(show(&ids), expected, "{:?}", tokenizer.pipeline);
    }
}

fn show(ids: &[u32]) -> Vec<String> {
    let tokens = tokens();
    ids.iter().map(|&id| tokens[id as usize].clone()).collect()
}

#[test]
fn merges_apply_in_order_of_importance() {
    check(
        "the in and",
        Specials::Plain,
        &["t", "he", "Ġ", "in", "Ġ", "and"],
    );
    check(" the", Specials::Plain, &["Ġthe"]);
}

#[test]
fn special_texts_are_tokens_only_where_they_are_parsed() {
    check("a<|im_end|>", Specials::Parse, &["a", "<|im_end|>"]);
    check(
        "<|im_end|>",
        Specials::Plain,
        &["<", "|", "i", "m", "_", "e", "n", "d", "|", ">"],
    );
    check("a<tool>b", Specials::Plain, &["a", "<tool>", "b"]);
}

#[test]
fn bytes_without_a_token_vanish_and_nothing_merges_across_them() {
    check("é", Specials::Plain, &[]);
    let tokenizer = gguf(|_| {}).unwrap();
    assert_eq!(show(&tokenizer.encode("hée", Specials::Plain)), ["h", "e"]);
}

#[test]
fn guarded_offsets_begin_no_special_token() {
    let text = "<|im_start|>the<|im_end|> the<|im_end|>";
    for tokenizer in [json(), gguf(|_| {}).unwrap()] {
        let plain = |text| tokenizer.encode(text, Specials::Plain);
        let expected = [vec![1], plain("the<|im_end|> the"), vec![2]].concat();
        assert_eq!(tokenizer.encode_guarded(text, &[15]), expected);
        assert_eq!(
            tokenizer.encode_guarded(text, &[3, 13]),
            tokenizer.encode(text, Specials::Parse)
        );
        assert_eq!(tokenizer.encode_guarded(text, &[0, 15, 29]), plain(text));
    }
}

#[test]
fn decoding_skips_special_tokens_and_replaces_broken_characters() {
    for tokenizer in [json(), gguf(|_| {}).unwrap()] {
        let ids = tokenizer.encode("<|im_start|>the in<tool>", Specials::Parse);
        assert_eq!(tokenizer.decode(&ids), "the in<tool>");
        assert_eq!(tokenizer.decode(&[u32::MAX]), "");
        assert_eq!(
            (tokenizer.token_bytes(2), tokenizer.token_bytes(3)),
            (&b""[..], &b" "[..])
        );
        assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
        assert_eq!(tokenizer.vocab_size(), 107);
        assert_eq!(
            (
                tokenizer.special_id("<|im_end|>"),
                tokenizer.special_id("the")
            ),
            (Some(2), None)
        );
        assert!(tokenizer.is_special(0) && !tokenizer.is_special(3) && !tokenizer.is_special(106));
    }
}

#[test]
fn a_space_goes_before_the_text_where_the_file_says_so() {
    let tokenizer = gguf(|vocabulary| vocabulary.add_space_prefix = true).unwrap();
    assert_eq!(show(&tokenizer.encode("the", Specials::Plain)), ["Ġthe"]);
    assert_eq!(show(&tokenizer.encode(" the", Specials::Plain)), ["Ġthe"]);
}

#[test]
fn no_text_becomes_a_control_token_by_merging() {
    // A vocabulary that ignores merges looks whole pieces up; a control token spelled like a word is not one.
    let tokenizer = gguf(|vocabulary| {
        vocabulary.pre = "llama-bpe";
        vocabulary.merges.clear();
        vocabulary.tokens[0] = "stop";
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokenizer.encode("stop", Specials::Plain).len(), 4);
    assert_eq!(tokenizer.encode("stop", Specials::Parse), [0]);
}

#[test]
fn what_a_gguf_file_gets_wrong_is_named() {
    let fault = |change: fn(&mut GgufVocabulary<'_>)| gguf(change).unwrap_err().to_string();
    assert_eq!(
        fault(|v| v.model = "llama"),
        "tokenizer.ggml.model llama is not supported"
    );
    assert_eq!(
        fault(|v| v.pre = "default"),
        "tokenizer.ggml.pre default is not supported"
    );
    let corrupt = |what: &str| format!("the tokenizer is corrupt: {what}");
    assert_eq!(
        fault(|v| v.tokens[8] = "#"),
        corrupt("tokenizer.ggml.tokens[8] is there before")
    );
    assert_eq!(
        fault(|v| v.merges[1] = "h"),
        corrupt("tokenizer.ggml.merges[1] is not of known tokens")
    );
    assert_eq!(
        fault(|v| v.merges[1] = "q x"),
        corrupt("tokenizer.ggml.merges[1] is not of known tokens")
    );
    assert_eq!(
        fault(|v| v.merges[1] = "< |im_end|>"),
        corrupt("tokenizer.ggml.merges[1] is not of known tokens")
    );
    assert_eq!(
        fault(|v| (v.tokens, v.kinds) = (Vec::new(), Vec::new())),
        corrupt("tokenizer.ggml.tokens has 0 entries, and must have 1 to 1048576")
    );
}

#[test]
fn json_that_would_break_the_library_is_refused() {
    let fault = |change: fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value = serde_json::from_str(JSON).unwrap();
        change(&mut json);
        Tokenizer::from_json(json.to_string().as_bytes())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let corrupt = |what: &str| format!("the tokenizer is corrupt: {what}");
    assert_eq!(
        fault(|j| j["model"]["merges"][0] = "Ġ the".into()),
        corrupt("model.merges[0] is not a pair of known tokens")
    );
    assert_eq!(
        fault(|j| j["model"]["vocab"]["!"] = u32::MAX.into()),
        corrupt("token id 4294967295, with a limit of 1048576")
    );
    assert_eq!(
        fault(|j| j["added_tokens"][0]["id"] = u32::MAX.into()),
        corrupt("token id 4294967295, with a limit of 1048576")
    );
    assert_eq!(
        fault(|j| j["model"]["unk_token"] = "nothing".into()),
        corrupt("model.unk_token is not in model.vocab")
    );
    assert_eq!(
        fault(|j| j["model"]["vocab"] = serde_json::Value::Null),
        corrupt("model.vocab is not an object")
    );
    assert_eq!(
        fault(|j| j["model"]["continuing_subword_prefix"] = "##".into()),
        "model.continuing_subword_prefix is not supported"
    );
    assert_eq!(
        fault(|j| j["model"]["dropout"] = 0.5.into()),
        "model.dropout is not supported"
    );
}
