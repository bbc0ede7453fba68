//! Large zeroed memory on huge pages: reading a KV cache in any order misses no translation of addresses.
#![expect(unsafe_code, reason = "bytes of a mapping are read as numbers")]

use std::marker::PhantomData;

use memmap2::MmapMut;

use super::element::Element;
use crate::backend::BackendError;

/// Zeroes until written; what was never written takes no memory.
#[derive(Debug)]
pub(super) struct Mapped<E> {
    map: MmapMut,
    len: usize,
    element: PhantomData<E>,
}

impl<E: Element> Mapped<E> {
    /// Maps `len` values.
    ///
    /// # Errors
    ///
    /// [`BackendError::OutOfMemory`] where the system refuses.
    pub(super) fn zeros(len: usize, what: &str) -> Result<Self, BackendError> {
        let bytes = len.saturating_mul(size_of::<E>());
        let map = MmapMut::map_anon(bytes).map_err(|_| BackendError::OutOfMemory {
            what: what.to_owned(),
            needed_bytes: bytes,
            // The system does not say how much it has.
            available_bytes: 0,
        })?;
        #[cfg(target_os = "linux")]
        // A hint: a kernel without huge pages refuses it, and small ones are right too.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self {
            map,
            len,
            element: PhantomData,
        })
    }

    /// Returns the bytes that it may come to hold.
    pub(super) fn bytes(&self) -> usize {
        self.map.len()
    }
}

impl<E: Element> std::ops::Deref for Mapped<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the mapping is as long, lies on a page, and zeroes and whatever was written are numbers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl<E: Element> std::ops::DerefMut for Mapped<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}
