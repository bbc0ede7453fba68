//! Counter-based draws: a draw depends on its name, not on what was drawn before.

/// Returns a number in `[0, 1)` with 53 random bits, named by (seed, choice, position).
///
/// Key: the seed's low and high word. Counter: choice, position, 0, 0.
pub(super) fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let words = philox4x32([choice, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the Philox4x32-10 block of `counter` under `key`.
///
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC11.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: known-answer vectors of the authors' Random123 library, `kat_vectors`.
    #[test]
    fn blocks_match_the_published_vectors() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn draws_differ_by_every_part_of_their_name() {
        let draws = [
            uniform(1, 0, 0),
            uniform(1 << 32, 0, 0),
            uniform(1, 1, 0),
            uniform(1, 0, 1),
        ];
        for (i, a) in draws.iter().enumerate() {
            assert!((0.0..1.0).contains(a));
            assert!(draws[..i].iter().all(|b| a != b), "{draws:?}");
        }
    }
}
