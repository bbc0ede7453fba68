//! The KV cache as the scheduler sees it: page tables of sequences over a pool and a radix tree.
//!
//! Owns the balance `free + used + cached = total`. Never touches a tensor: what a page holds is the
//! backend's business, where it lies is this module's.

use std::borrow::Cow;

use super::pages::{PageId, PagePool};
use super::radix::{NodeId, PageState, RadixTree};

/// The accepted tokens of a sequence: its prompt, then its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) output: &'a [u32],
}

impl<'a> Tokens<'a> {
    pub(crate) fn len(self) -> usize {
        self.prompt.len() + self.output.len()
    }

    /// Returns the tokens at `start..end`.
    pub(crate) fn range(self, start: usize, end: usize) -> Cow<'a, [u32]> {
        let border = self.prompt.len();
        if end <= border {
            Cow::Borrowed(&self.prompt[start..end])
        } else if start >= border {
            Cow::Borrowed(&self.output[start - border..end - border])
        } else {
            let mut joined = self.prompt[start..].to_vec();
            joined.extend_from_slice(&self.output[..end - border]);
            Cow::Owned(joined)
        }
    }
}

/// The pages of one running sequence, in token order.
#[derive(Debug)]
pub(crate) struct Table {
    salt: u64,
    page_tokens: usize,
    pages: Vec<PageId>,
    /// Nodes of the first pages. The pages after them are private.
    nodes: Vec<NodeId>,
    /// How many of `nodes` are known to be ready.
    ready: usize,
    /// False once a page could not enter the tree: what follows it stays private too.
    linkable: bool,
}

impl Table {
    /// Returns the numbers of the pages that hold the first `tokens` tokens.
    pub(crate) fn page_numbers(&self, tokens: usize) -> Vec<u32> {
        let count = tokens.div_ceil(self.page_tokens);
        self.pages[..count].iter().map(|page| page.0).collect()
    }

    /// Returns how many pages the sequence has.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }
}

/// What the tree holds of a sequence that wants to start.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The next page is being computed by another sequence: wait for it.
    Computing,
    /// These pages are there.
    Found(Hit),
}

/// Pages of a prefix that are ready.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    nodes: Vec<NodeId>,
    idle: usize,
}

impl Hit {
    /// Returns the number of pages found.
    pub(crate) fn pages(&self) -> usize {
        self.nodes.len()
    }
}

/// Pool and tree together.
#[derive(Debug)]
pub(crate) struct KvCache {
    page_tokens: usize,
    prefix_cache: bool,
    pool: PagePool,
    tree: RadixTree,
    private: usize,
}

impl KvCache {
    /// Makes a cache of `pages` free pages; without `prefix_cache` nothing is ever shared.
    pub(crate) fn new(pages: u32, page_tokens: usize, prefix_cache: bool) -> KvCache {
        KvCache {
            page_tokens,
            prefix_cache,
            pool: PagePool::new(pages),
            tree: RadixTree::default(),
            private: 0,
        }
    }

    /// Returns the number of pages that hold `tokens` tokens.
    pub(crate) fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Returns the number of tokens in a page.
    pub(crate) fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Returns the number of pages in all.
    pub(crate) fn total(&self) -> usize {
        self.pool.total()
    }

    /// Returns how many pages can be had without taking one from a running sequence.
    pub(crate) fn available(&self) -> usize {
        self.pool.free() + self.tree.idle()
    }

    /// Returns how many pages are left for others once `hit` is held.
    pub(crate) fn available_beside(&self, hit: &Hit) -> usize {
        self.available() - hit.idle
    }

    /// Returns how many pages of a sequence nobody else holds: those that its end makes available.
    pub(crate) fn own_pages(&self, table: &Table) -> usize {
        // Who holds a page holds all before it: only the first ones can be shared.
        let shared = table
            .nodes
            .partition_point(|node| self.tree.is_shared(*node));
        table.pages.len() - shared
    }

    /// Finds the longest ready prefix, the last token always left to compute.
    pub(crate) fn lookup(&self, salt: u64, tokens: Tokens<'_>) -> Lookup {
        let mut hit = Hit::default();
        if !self.prefix_cache {
            return Lookup::Found(hit);
        }
        for index in 0..(tokens.len() - 1) / self.page_tokens {
            let page = self.page_of(tokens, index);
            let Some(node) = self.tree.child(salt, hit.nodes.last().copied(), &page) else {
                break;
            };
            match self.tree.state(node) {
                PageState::Computing => return Lookup::Computing,
                PageState::Ready => hit.nodes.push(node),
            }
        }
        hit.idle = hit
            .nodes
            .iter()
            .filter(|node| self.tree.is_idle(**node))
            .count();
        Lookup::Found(hit)
    }

    /// Gives a sequence pages for all of its tokens: those of `hit`, and new ones. New full pages enter the
    /// tree as computing.
    ///
    /// # Panics
    ///
    /// If the pages are not available; see [`KvCache::available_beside`].
    pub(crate) fn open(&mut self, salt: u64, tokens: Tokens<'_>, hit: Hit) -> Table {
        let mut table = Table {
            salt,
            page_tokens: self.page_tokens,
            pages: Vec::with_capacity(self.pages_for(tokens.len())),
            ready: hit.nodes.len(),
            nodes: hit.nodes,
            linkable: self.prefix_cache,
        };
        for &node in &table.nodes {
            self.tree.hold(node, salt);
            table.pages.push(self.tree.page(node));
        }
        let grown = self.grow(&mut table, tokens.len());
        assert!(grown, "a sequence is admitted without the pages for it");
        while table.linkable && (table.nodes.len() + 1) * self.page_tokens <= tokens.len() {
            let index = table.nodes.len();
            let parent = table.nodes.last().copied();
            let page = self.page_of(tokens, index);
            if self.tree.child(salt, parent, &page).is_some() {
                break;
            }
            let node = self.tree.insert(
                salt,
                parent,
                page.into(),
                table.pages[index],
                PageState::Computing,
            );
            self.private -= 1;
            table.nodes.push(node);
        }
        table
    }

    /// Adds pages until the table holds `tokens` tokens. Returns false, and keeps what it got, if there are
    /// no more.
    pub(crate) fn grow(&mut self, table: &mut Table, tokens: usize) -> bool {
        while table.pages.len() < self.pages_for(tokens) {
            let Some(page) = self.take_page() else {
                return false;
            };
            table.pages.push(page);
        }
        true
    }

    /// Shares the full pages among the first `computed` tokens, all of them accepted.
    ///
    /// A page whose tokens another sequence has computed before is exchanged for that one, and freed.
    pub(crate) fn share(&mut self, table: &mut Table, tokens: Tokens<'_>, computed: usize) {
        assert!(
            computed <= tokens.len(),
            "a page is shared before its tokens are accepted"
        );
        let full = computed / self.page_tokens;
        while table.ready < table.nodes.len().min(full) {
            self.tree.mark_ready(table.nodes[table.ready]);
            table.ready += 1;
        }
        while table.linkable && table.nodes.len() < full {
            let index = table.nodes.len();
            let parent = table.nodes.last().copied();
            let page = self.page_of(tokens, index);
            let node = match self.tree.child(table.salt, parent, &page) {
                None => {
                    let own = table.pages[index];
                    self.tree
                        .insert(table.salt, parent, page.into(), own, PageState::Ready)
                }
                Some(node) if self.tree.state(node) == PageState::Ready => {
                    self.tree.hold(node, table.salt);
                    self.pool.give_back(table.pages[index]);
                    table.pages[index] = self.tree.page(node);
                    node
                }
                Some(_) => {
                    table.linkable = false;
                    return;
                }
            };
            self.private -= 1;
            table.nodes.push(node);
            table.ready += 1;
        }
    }

    /// Takes a sequence's pages back. Shared ones stay in the tree until they are evicted.
    pub(crate) fn close(&mut self, table: Table) {
        for &page in &table.pages[table.nodes.len()..] {
            self.pool.give_back(page);
            self.private -= 1;
        }
        self.tree.tick();
        for &node in table.nodes.iter().rev() {
            if let Some(page) = self.tree.release(node) {
                self.pool.give_back(page);
            }
        }
    }

    /// Checks that every page is free, used or cached, and none of them twice.
    ///
    /// # Panics
    ///
    /// If the balance is broken.
    pub(crate) fn assert_balanced(&self) {
        let (free, used, cached) = (
            self.pool.free(),
            self.private + self.tree.held(),
            self.tree.idle(),
        );
        assert_eq!(
            free + used + cached,
            self.pool.total(),
            "KV pages are lost or doubled: {free} free, {used} used, {cached} cached"
        );
    }

    fn take_page(&mut self) -> Option<PageId> {
        if self.pool.free() == 0 {
            let evicted = self.tree.evict()?;
            self.pool.give_back(evicted);
        }
        let page = self.pool.take()?;
        self.private += 1;
        Some(page)
    }

    fn page_of<'a>(&self, tokens: Tokens<'a>, index: usize) -> Cow<'a, [u32]> {
        tokens.range(index * self.page_tokens, (index + 1) * self.page_tokens)
    }
}
