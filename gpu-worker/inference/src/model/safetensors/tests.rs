//! Headers and indices, sound and broken.

use expect_test::{Expect, expect};

use super::*;

fn file(header: &str, data: usize) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &vec![0; data],
    ]
    .concat()
}

fn check(bytes: &[u8], expected: &Expect) {
    expected.assert_eq(&match parse_header(bytes) {
        Ok(header) => format!("{:?}", header.tensors),
        Err(Fault::Corrupt(what)) => format!("corrupt: {what}"),
        Err(Fault::Unsupported(what)) => format!("unsupported: {what}"),
    });
}

fn entry(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""t": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}"#)
}

#[test]
fn tensors_are_placed_behind_the_header() {
    let header = format!(
        r#"{{"__metadata__": {{"format": "pt"}}, {}}}"#,
        entry("BF16", "[2, 3]", "[0, 12]")
    );
    check(
        &file(&header, 12),
        &expect![[r#"{"t": Tensor { file: 0, format: Bf16, shape: [2, 3], range: 108..120 }}"#]],
    );
}

#[test]
fn what_is_wrong_is_named() {
    let one = |dtype, shape, offsets| file(&format!("{{{}}}", entry(dtype, shape, offsets)), 12);
    check(&[0; 7], &expect!["corrupt: 7 bytes are no header"]);
    check(
        &u64::MAX.to_le_bytes(),
        &expect![
            "corrupt: a header of 18446744073709551615 bytes in a file of 8, with a limit of 100000000"
        ],
    );
    check(
        &file("{", 0),
        &expect![
            "corrupt: the header does not parse: EOF while parsing an object at line 1 column 1"
        ],
    );
    check(
        &file("[]", 0),
        &expect![
            "corrupt: the header does not parse: invalid type: sequence, expected an object at line 1 column 0"
        ],
    );
    check(
        &one("F8_E4M3", "[12]", "[0, 12]"),
        &expect!["unsupported: tensor t of type F8_E4M3"],
    );
    check(
        &one("F32", "[4]", "[0, 16]"),
        &expect!["corrupt: tensor t lies at 0..16 of 12 bytes of data"],
    );
    check(
        &one("F32", "[4]", "[0, 12]"),
        &expect!["corrupt: tensor t of shape [4] and type F32 lies at 0..12"],
    );
    check(
        &one("F32", "[3]", "[12, 0]"),
        &expect!["corrupt: tensor t of shape [3] and type F32 lies at 12..0"],
    );
    check(
        &one("F32", "[-3]", "[0, 12]"),
        &expect![
            "corrupt: the header does not parse: invalid value: integer `-3`, expected usize at line 1 column 35"
        ],
    );
    check(
        &one("F32", "[4611686018427387904, 4]", "[0, 0]"),
        &expect!["corrupt: tensor t of shape [4611686018427387904, 4] and type F32 lies at 0..0"],
    );
    check(
        &one("F32", "[3]", "[18446744073709551603, 18446744073709551615]"),
        &expect![
            "corrupt: tensor t lies at 18446744073709551603..18446744073709551615 of 12 bytes of data"
        ],
    );
    let twice = format!(
        "{{{}, {}}}",
        entry("F32", "[1]", "[0, 4]"),
        entry("F32", "[1]", "[4, 8]")
    );
    check(
        &file(&twice, 8),
        &expect!["corrupt: the header does not parse: t is there twice at line 1 column 122"],
    );
    check(
        &file(
            &format!(r#"{{"__metadata__": {}}}"#, "[".repeat(100_000)),
            0,
        ),
        &expect!["corrupt: the header does not parse: expected value at line 1 column 100018"],
    );
}

#[test]
fn shard_names_that_lead_out_of_the_folder_are_refused() {
    let index = |name: &str| {
        parse_index(format!(r#"{{"weight_map": {{"t": {}}}}}"#, serde_json::json!(name)).as_bytes())
    };
    assert!(index("model-00001-of-00002.safetensors").is_ok());
    for name in [
        "../a.safetensors",
        "/a.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        "..",
        "",
        ".safetensors",
        "a.bin",
        "a\0.safetensors",
    ] {
        assert_eq!(
            index(name),
            Err(Fault::corrupt(format!("shard file name {name:?}")))
        );
    }
}

#[test]
fn shards_are_joined_and_an_index_that_lies_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let shard = |tensor: &str| {
        file(
            &format!(
                "{{{}}}",
                entry("F32", "[1]", "[0, 4]").replace("\"t\"", &format!("{tensor:?}"))
            ),
            4,
        )
    };
    let index =
        |a: &str, b: &str| serde_json::json!({ "weight_map": { "a": a, "b": b } }).to_string();
    write("1.safetensors", &shard("a"));
    write("2.safetensors", &shard("b"));
    write(INDEX, index("1.safetensors", "2.safetensors").as_bytes());
    let shards = Shards::open(folder.path(), &mut Digest::new("")).unwrap();
    assert_eq!(
        shards
            .tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor.file))
            .collect::<Vec<_>>(),
        [("a", 0), ("b", 1)]
    );

    write(INDEX, index("2.safetensors", "1.safetensors").as_bytes());
    let error = Shards::open(folder.path(), &mut Digest::new("")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tensor a is not in 2.safetensors"),
        "{error}"
    );

    write("2.safetensors", &shard("a"));
    write(INDEX, index("1.safetensors", "2.safetensors").as_bytes());
    let error = Shards::open(folder.path(), &mut Digest::new("")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tensor a is in another shard too"),
        "{error}"
    );
}
