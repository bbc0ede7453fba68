//! Whether a custom_id was there before, at 16 bytes each.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use siphasher::sip128::SipHasher24;

/// The custom_ids of a file, as 128-bit hashes.
///
/// The key is random and secret, so that nobody can make two ids collide on purpose; by chance two of a
/// million ids do so once in 10²⁶ files.
#[derive(Debug)]
pub struct IdSet {
    hasher: SipHasher24,
    hashes: HashSet<u128, BuildHasherDefault<LowBits>>,
}

impl IdSet {
    /// Starts empty.
    #[must_use]
    pub fn new(key: [u8; 16]) -> Self {
        Self {
            hasher: SipHasher24::new_with_key(&key),
            hashes: HashSet::default(),
        }
    }

    /// Adds an unescaped id and returns whether it is new.
    pub fn insert(&mut self, custom_id: &[u8]) -> bool {
        self.hashes.insert(self.hasher.hash(custom_id).as_u128())
    }
}

/// Takes the low half of what is a hash already.
#[derive(Debug, Default)]
struct LowBits(u64);

impl Hasher for LowBits {
    fn write(&mut self, bytes: &[u8]) {
        let mut low = [0; 8];
        let length = bytes.len().min(8);
        low[..length].copy_from_slice(&bytes[..length]);
        self.0 = u64::from_ne_bytes(low);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
