//! Blocks against the gguf package's reference, to the bit. `tests/data/make.py` writes them.

use serde_json::Value;

use super::*;

const GOLDEN: &str = include_str!("../../../tests/data/dequant.jsonl");

fn format_named(name: &str) -> Format {
    match name {
        "F16" => Format::F16,
        "Q4_0" => Format::Q4_0,
        "Q4_1" => Format::Q4_1,
        "Q8_0" => Format::Q8_0,
        "Q4_K" => Format::Q4K,
        "Q6_K" => Format::Q6K,
        other => panic!("no format {other}"),
    }
}

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn blocks_decode_to_the_bits_of_the_reference() {
    for line in GOLDEN.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let bits = case["bits"].as_str().unwrap();
        let expected: Vec<u32> = (0..bits.len())
            .step_by(8)
            .map(|at| u32::from_str_radix(&bits[at..at + 8], 16).unwrap())
            .collect();
        let format = format_named(case["format"].as_str().unwrap());
        let mut out = vec![f32::NAN; expected.len()];
        dequantise(
            format,
            &bytes_of_hex(case["block"].as_str().unwrap()),
            &mut out,
        );
        assert_eq!(
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>(),
            expected,
            "{format:?}"
        );
    }
}

#[test]
fn plain_numbers_are_read_as_they_are() {
    let mut out = [0.0; 2];
    dequantise(Format::F32, &[0, 0, 128, 63, 0, 0, 0, 192], &mut out);
    assert_eq!(out, [1.0, -2.0]);
    dequantise(Format::Bf16, &[128, 63, 0, 192], &mut out);
    assert_eq!(out, [1.0, -2.0]);
}

#[test]
fn a_q4_1_block_is_scale_times_nibble_plus_minimum() {
    // d = 2, m = -1; the first byte is 0x93: value 0 is 3, value 16 is 9.
    let mut block = [0_u8; 20];
    block[..4].copy_from_slice(&[0x00, 0x40, 0x00, 0xBC]);
    block[4] = 0x93;
    let mut out = [0.0; 32];
    dequantise(Format::Q4_1, &block, &mut out);
    assert_eq!((out[0], out[1], out[16], out[17]), (5.0, -1.0, 17.0, -1.0));
}
