//! Headers written here byte by byte, sound and broken.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

/// Writes a header by hand, so that it can be wrong.
#[derive(Default, Clone)]
struct Header {
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Header {
    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries
            .push([string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat());
        self
    }

    fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let sizes: Vec<u8> = dimensions
            .iter()
            .flat_map(|size| size.to_le_bytes())
            .collect();
        let count = u32::try_from(dimensions.len())
            .unwrap()
            .to_le_bytes()
            .to_vec();
        let tail = [kind.to_le_bytes().as_slice(), &offset.to_le_bytes()].concat();
        self.tensors
            .push([string(name), count, sizes, tail].concat());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

fn string(text: &str) -> Vec<u8> {
    [
        (text.len() as u64).to_le_bytes().as_slice(),
        text.as_bytes(),
    ]
    .concat()
}

/// An array value: element type, count, elements.
fn array(kind: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), &len.to_le_bytes(), elements].concat()
}

fn sample() -> Header {
    Header {
        data: vec![0; 64],
        ..Header::default()
    }
    .entry("general.architecture", 8, &string("llama"))
    .entry("a.bool", 7, &[1])
    .entry(
        "a.array",
        9,
        &array(8, 2, &[string("x"), string("yz")].concat()),
    )
    .entry(
        "a.nested",
        9,
        &array(9, 1, &array(4, 2, &[1, 0, 0, 0, 2, 0, 0, 0])),
    )
    .entry("a.float", 6, &1.5_f32.to_le_bytes())
    .tensor("one", &[4, 2], 0, 0)
    .tensor("two", &[32], 8, 32)
}

fn check(header: &Header, expected: &Expect) {
    expected.assert_eq(&match Gguf::parse(&header.bytes()) {
        Ok(gguf) => format!("{:?}", gguf.tensors),
        Err(Fault::Corrupt(what)) => format!("corrupt: {what}"),
        Err(Fault::Unsupported(what)) => format!("unsupported: {what}"),
    });
}

#[test]
fn a_header_is_read_with_all_its_values() {
    let mut header = sample();
    header.data = vec![0; 66];
    let bytes = header.bytes();
    let gguf = Gguf::parse(&bytes).unwrap();
    assert_eq!(gguf.str("general.architecture"), Ok("llama"));
    assert_eq!(gguf.optional_bool("a.bool"), Ok(Some(true)));
    assert_eq!(gguf.optional_f64("a.float"), Ok(Some(1.5)));
    let strings: Vec<Value<'_>> = gguf
        .optional_array("a.array")
        .unwrap()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(strings, [Value::String(b"x"), Value::String(b"yz")]);
    let nested: Vec<Value<'_>> = gguf
        .optional_array("a.nested")
        .unwrap()
        .unwrap()
        .iter()
        .collect();
    let inner: Vec<Value<'_>> = nested[0].as_array().unwrap().iter().collect();
    assert_eq!(inner, [Value::Unsigned(1), Value::Unsigned(2)]);
    let start = gguf.data_start;
    assert_eq!(
        gguf.tensors[0].shape,
        [2, 4],
        "the outermost dimension comes first"
    );
    assert_eq!(
        (gguf.tensors[0].range.clone(), gguf.tensors[1].range.clone()),
        (start..start + 32, start + 32..start + 66)
    );
}

#[test]
fn what_is_wrong_is_named() {
    let h = Header::default;
    check(
        &sample(),
        &expect!["corrupt: tensor two of shape [32] at 32 lies beyond the file's end"],
    );
    check(
        &h().entry("k", 4, &[0; 4]).entry("k", 4, &[0; 4]),
        &expect!["corrupt: metadata key at offset 41 is there twice"],
    );
    check(
        &h().tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 0),
        &expect!["corrupt: tensor t is there twice"],
    );
    check(
        &h().entry("k", 13, &[]),
        &expect!["corrupt: value type at offset 33 is 13"],
    );
    check(
        &h().entry("k", 7, &[2]),
        &expect!["corrupt: boolean at offset 37 is neither 0 nor 1"],
    );
    check(
        &h().entry("k", 8, &u64::MAX.to_le_bytes()),
        &expect!["corrupt: string at offset 45 needs 18446744073709551615 bytes and 19 are left"],
    );
    check(
        &h().entry("k", 9, &array(4, u64::MAX, &[])),
        &expect![
            "corrupt: array length at offset 41 is 18446744073709551615, with 15 bytes left and a limit of 18446744073709551615"
        ],
    );
    check(
        &h().entry("k", 9, &array(4, u64::MAX / 4 + 1, &[])),
        &expect![
            "corrupt: array length at offset 41 is 4611686018427387904, with 15 bytes left and a limit of 18446744073709551615"
        ],
    );
    check(
        &h().entry("k", 9, &array(8, 2, &string("x"))),
        &expect![
            "corrupt: array length at offset 41 is 2, with 15 bytes left and a limit of 18446744073709551615"
        ],
    );
    check(
        &h().entry("general.alignment", 4, &0_u32.to_le_bytes()),
        &expect!["corrupt: general.alignment is 0"],
    );
    check(
        &h().entry("general.alignment", 8, &string("32")),
        &expect!["corrupt: general.alignment is a string, and should be an unsigned integer"],
    );
    check(
        &h().tensor("t", &[u64::MAX, u64::MAX], 0, 0),
        &expect![
            "corrupt: tensor t of shape [18446744073709551615, 18446744073709551615] at 0 lies beyond the file's end"
        ],
    );
    check(
        &h().tensor("t", &[1 << 62, 4], 0, 0),
        &expect![
            "corrupt: tensor t of shape [4, 4611686018427387904] at 0 lies beyond the file's end"
        ],
    );
    check(
        &h().tensor("t", &[0], 0, 0),
        &expect!["corrupt: tensor t has a dimension of no size"],
    );
    check(
        &h().tensor("t", &[], 0, 0),
        &expect!["corrupt: tensor t has 0 dimensions"],
    );
    check(
        &h().tensor("t", &[1; 5], 0, 0),
        &expect!["corrupt: tensor t has 5 dimensions"],
    );
    check(
        &h().tensor("t", &[33], 8, 0),
        &expect!["corrupt: tensor t has rows of 33 values, not a multiple of 32"],
    );
    check(
        &h().tensor("t", &[1], 0, 1),
        &expect!["corrupt: tensor t begins at 1, not a multiple of 32"],
    );
    check(
        &h().tensor("t", &[1], 0, u64::MAX - 31),
        &expect![
            "corrupt: tensor t of shape [1] at 18446744073709551584 lies beyond the file's end"
        ],
    );
    check(
        &h().tensor("t", &[256], 13, 0),
        &expect!["unsupported: tensor t of type 13 (Q5_K)"],
    );
    check(
        &h().tensor("t", &[256], 99, 0),
        &expect!["unsupported: tensor t of type 99 (unknown)"],
    );
    check(
        &h().tensor(&"t".repeat(257), &[1], 0, 0),
        &expect!["corrupt: tensor name at offset 24 is too long or not UTF-8"],
    );
}

#[test]
fn arrays_nested_too_deeply_are_refused() {
    let mut value = array(4, 0, &[]);
    for _ in 0..1000 {
        value = array(9, 1, &value);
    }
    check(
        &Header::default().entry("k", 9, &value),
        &expect!["corrupt: arrays at offset 85 are nested deeper than 4"],
    );
}

#[test]
fn other_versions_and_files_are_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let mut header = sample().bytes();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        Gguf::parse(&header).map(|_| ()).unwrap_err()
    };
    assert_eq!(
        with(0, b"GGML"),
        Fault::corrupt("the file does not begin with GGUF")
    );
    assert_eq!(
        with(4, &1_u32.to_le_bytes()),
        Fault::unsupported("GGUF version 1")
    );
    assert_eq!(
        with(4, &3_u32.to_be_bytes()),
        Fault::unsupported("big-endian GGUF")
    );
    let expected = "tensor count at offset 8 is 65537, with 368 bytes left and a limit of 65536";
    assert_eq!(with(8, &65_537_u64.to_le_bytes()), Fault::corrupt(expected));
}

proptest! {
    #[test]
    fn broken_headers_never_panic(flips in prop::collection::vec((0_usize..400, any::<u8>()), 1..4), cut in 0_usize..400) {
        let mut bytes = sample().bytes();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len().saturating_sub(cut % 64));
        if let Ok(gguf) = Gguf::parse(&bytes) {
            for tensor in &gguf.tensors {
                prop_assert!(tensor.range.end <= bytes.len());
            }
        }
    }
}
