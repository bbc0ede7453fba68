//! The pool of KV pages, by number.
//!
//! Owns which pages are free. Never knows what a page holds, nor who refers to it: shared pages are
//! counted by [`super::radix`], private ones belong to one [`super::kv::Table`].

/// Names a KV page, the same in every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageId(pub(crate) u32);

/// A fixed number of pages, each free or taken.
#[derive(Debug)]
pub(crate) struct PagePool {
    free: Vec<PageId>,
    taken: Vec<bool>,
}

impl PagePool {
    /// Makes a pool of `total` free pages.
    pub(crate) fn new(total: u32) -> PagePool {
        PagePool {
            free: (0..total).rev().map(PageId).collect(),
            taken: vec![false; total as usize],
        }
    }

    /// Takes a free page, if there is one.
    pub(crate) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.taken[page.0 as usize] = true;
        Some(page)
    }

    /// Gives a page back.
    ///
    /// # Panics
    ///
    /// If the page is free already: two owners believed that they held it.
    pub(crate) fn give_back(&mut self, page: PageId) {
        let taken = &mut self.taken[page.0 as usize];
        assert!(*taken, "page {} is given back twice", page.0);
        *taken = false;
        self.free.push(page);
    }

    /// Returns the number of free pages.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of pages in all.
    pub(crate) fn total(&self) -> usize {
        self.taken.len()
    }
}
