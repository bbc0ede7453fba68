//! Arrays that the host fills for every step, and the device reads.
//!
//! Each has its place on the device, and the same place in two pinned copies: the host fills one while the
//! device may still read the other.

use super::driver::{Device, Event, Pinned, Said};

/// A place in one memory, in words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    first: usize,
    len: usize,
}

/// Lays arrays out.
#[derive(Debug, Default)]
pub(super) struct Plan {
    words: usize,
}

impl Plan {
    /// Makes a place of `len` words that begins at a multiple of 16 bytes.
    pub(super) fn place(&mut self, len: usize) -> Place {
        let first = self.words;
        self.words += len.next_multiple_of(4);
        Place { first, len }
    }
}

/// The memory of a plan.
#[derive(Debug)]
pub(super) struct Upload {
    at: u64,
    copies: [PinnedCopy; 2],
    /// Which copy is being filled.
    current: usize,
}

#[derive(Debug)]
struct PinnedCopy {
    pinned: Pinned,
    /// Where the stream has read it.
    event: Event,
    used: bool,
}

impl Upload {
    /// Allocates what `plan` has laid out, or returns the bytes that the device has no room for.
    pub(super) fn new(device: &mut Device, plan: &Plan) -> Said<Result<Self, usize>> {
        let bytes = 4 * plan.words.max(1);
        let Some(at) = device.allocate(bytes)? else {
            return Ok(Err(bytes));
        };
        let mut copy = || -> Said<PinnedCopy> {
            Ok(PinnedCopy {
                pinned: device.allocate_pinned(plan.words)?,
                event: device.event()?,
                used: false,
            })
        };
        let copies = [copy()?, copy()?];
        Ok(Ok(Self {
            at,
            copies,
            current: 0,
        }))
    }

    /// Returns the address of a place on the device.
    pub(super) fn address(&self, place: Place) -> u64 {
        self.at + 4 * place.first as u64
    }

    /// Takes the other copy, once the device has read what is in it.
    pub(super) fn turn(&mut self, device: &Device) -> Said<()> {
        self.current = 1 - self.current;
        let copy = &mut self.copies[self.current];
        if std::mem::replace(&mut copy.used, false) {
            device.wait(copy.event)?;
        }
        Ok(())
    }

    /// Marks that the uploads so far are enqueued.
    pub(super) fn uploaded(&mut self, device: &Device) -> Said<()> {
        let copy = &mut self.copies[self.current];
        copy.used = true;
        device.record(copy.event)
    }

    /// Uploads `values`, and then enough of `fill` to make `len` words.
    pub(super) fn send(
        &self,
        device: &mut Device,
        place: Place,
        values: impl Iterator<Item = u32>,
        len: usize,
        fill: u32,
    ) -> Said<()> {
        if len > place.len {
            return Err(format!(
                "a step has an array of {len} words where the plan has room for {}",
                place.len
            ));
        }
        let pinned = self.copies[self.current].pinned;
        let words = device.words_mut(pinned, place.first, len);
        let mut filled = 0;
        for (word, value) in words.iter_mut().zip(values) {
            *word = value;
            filled += 1;
        }
        words[filled..].fill(fill);
        device.copy_in(self.address(place), pinned, place.first, len)
    }

    /// Uploads `values`.
    pub(super) fn send_all(&self, device: &mut Device, place: Place, values: &[u32]) -> Said<()> {
        self.send(device, place, values.iter().copied(), values.len(), 0)
    }
}
