//! Pages of lists, filled whatever the port's pages hold.

use batch_core::limits::LIST_PAGE_BYTES_MAX;

/// A page of a list, always filled: it is shorter than asked only at the end or at [`LIST_PAGE_BYTES_MAX`],
/// and never empty with `has_more`.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// In the order asked for.
    pub items: Vec<T>,
    /// Whether others follow.
    pub has_more: bool,
}

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct Filling<T> {
    items: Vec<T>,
    limit: usize,
    bytes: usize,
}

impl<T> Filling<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            items: Vec::new(),
            limit,
            bytes: 0,
        }
    }

    /// Adds an item of so many stored bytes, unless the page is full. Returns whether it did.
    pub(super) fn push(&mut self, item: T, bytes: usize) -> bool {
        let fits = self.items.is_empty() || self.bytes + bytes <= LIST_PAGE_BYTES_MAX;
        if self.items.len() >= self.limit || !fits {
            return false;
        }
        self.items.push(item);
        self.bytes += bytes;
        true
    }

    /// The page, when an item did not fit.
    pub(super) fn cut(self) -> Listed<T> {
        Listed {
            items: self.items,
            has_more: true,
        }
    }

    /// The page, when there are no more items.
    pub(super) fn ended(self) -> Listed<T> {
        Listed {
            items: self.items,
            has_more: false,
        }
    }
}
