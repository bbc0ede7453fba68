//! Which token prefixes lie in which pages: a radix tree whose edges are one page of tokens long.
//!
//! Each salt (tenant) has a root of its own, so that no page is ever found across tenants. A node is
//! computing (its owner still fills the page) or ready (anyone of the salt may read it). Nodes count the
//! sequences that hold them; a ready node that nobody holds stays until it is the least recently used one.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use super::pages::PageId;

/// Names a node of the tree; valid while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

/// Whether a page may be read by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Its one holder still computes it.
    Computing,
    /// All of its tokens are computed and accepted.
    Ready,
}

type Children = HashMap<Box<[u32]>, NodeId>;

#[derive(Debug)]
struct Node {
    salt: u64,
    parent: Option<NodeId>,
    depth: u32,
    tokens: Box<[u32]>,
    page: PageId,
    state: PageState,
    holders: u32,
    idle_since: u64,
    children: Children,
}

/// The tree of all salts.
#[derive(Debug, Default)]
pub(crate) struct RadixTree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: HashMap<u64, Children>,
    /// Ready nodes without a holder, in the order of eviction. A node is held by every sequence that holds
    /// one of its children, so it never becomes idle before them: the first entry is always a leaf.
    idle: BTreeSet<(u64, Reverse<u32>, NodeId)>,
    held: usize,
    clock: u64,
}

impl RadixTree {
    /// Returns the node below `parent` (below the salt's root if none) for one page of tokens.
    pub(crate) fn child(
        &self,
        salt: u64,
        parent: Option<NodeId>,
        tokens: &[u32],
    ) -> Option<NodeId> {
        let children = match parent {
            Some(parent) => &self.node(parent).children,
            None => self.roots.get(&salt)?,
        };
        children.get(tokens).copied()
    }

    /// Returns whether a node's page may be read.
    pub(crate) fn state(&self, id: NodeId) -> PageState {
        self.node(id).state
    }

    /// Returns a node's page.
    pub(crate) fn page(&self, id: NodeId) -> PageId {
        self.node(id).page
    }

    /// Returns whether no sequence holds the node.
    pub(crate) fn is_idle(&self, id: NodeId) -> bool {
        self.node(id).holders == 0
    }

    /// Returns whether more than one sequence holds the node.
    pub(crate) fn is_shared(&self, id: NodeId) -> bool {
        self.node(id).holders > 1
    }

    /// Adds a node that the caller holds.
    ///
    /// # Panics
    ///
    /// If the node exists, or `parent` belongs to another salt.
    pub(crate) fn insert(
        &mut self,
        salt: u64,
        parent: Option<NodeId>,
        tokens: Box<[u32]>,
        page: PageId,
        state: PageState,
    ) -> NodeId {
        let depth = parent.map_or(0, |parent| {
            let parent = self.node(parent);
            assert_eq!(parent.salt, salt, "a prefix is extended across salts");
            parent.depth + 1
        });
        let node = Node {
            salt,
            parent,
            depth,
            tokens: tokens.clone(),
            page,
            state,
            holders: 1,
            idle_since: 0,
            children: Children::new(),
        };
        let id = self.place(node);
        let earlier = self.siblings(salt, parent).insert(tokens, id);
        assert!(earlier.is_none(), "a prefix has two pages in the tree");
        self.held += 1;
        id
    }

    /// Adds a holder to a ready node of its own salt.
    ///
    /// # Panics
    ///
    /// If the node is of another salt, or still computing.
    pub(crate) fn hold(&mut self, id: NodeId, salt: u64) {
        let node = self.node_mut(id);
        assert_eq!(node.salt, salt, "a page is shared across salts");
        assert_eq!(
            node.state,
            PageState::Ready,
            "a page is shared before it is computed"
        );
        node.holders += 1;
        if node.holders == 1 {
            let key = (node.idle_since, Reverse(node.depth), id);
            assert!(
                self.idle.remove(&key),
                "an idle node is not in the order of eviction"
            );
            self.held += 1;
        }
    }

    /// Says that a node's page is computed.
    pub(crate) fn mark_ready(&mut self, id: NodeId) {
        self.node_mut(id).state = PageState::Ready;
    }

    /// Starts a new moment: nodes that become idle within one moment are evicted deepest first.
    pub(crate) fn tick(&mut self) {
        self.clock += 1;
    }

    /// Drops one holder. Returns the page if the node is gone: it was never computed to its end.
    ///
    /// Nodes of one sequence are released deepest first.
    pub(crate) fn release(&mut self, id: NodeId) -> Option<PageId> {
        let clock = self.clock;
        let node = self.node_mut(id);
        assert!(
            node.holders > 0,
            "a node is released more often than it was held"
        );
        node.holders -= 1;
        if node.holders > 0 {
            return None;
        }
        let (state, depth) = (node.state, node.depth);
        node.idle_since = clock;
        self.held -= 1;
        match state {
            PageState::Ready => {
                self.idle.insert((clock, Reverse(depth), id));
                None
            }
            PageState::Computing => Some(self.remove(id)),
        }
    }

    /// Removes the least recently used node that nobody holds, and returns its page.
    pub(crate) fn evict(&mut self) -> Option<PageId> {
        let (_, _, id) = self.idle.pop_first()?;
        Some(self.remove(id))
    }

    /// Returns the number of nodes that somebody holds.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of nodes that nobody holds.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize]
            .as_ref()
            .expect("a node is used after its removal")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize]
            .as_mut()
            .expect("a node is used after its removal")
    }

    fn siblings(&mut self, salt: u64, parent: Option<NodeId>) -> &mut Children {
        match parent {
            Some(parent) => &mut self.node_mut(parent).children,
            None => self.roots.entry(salt).or_default(),
        }
    }

    fn place(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant.pop() {
            self.nodes[id.0 as usize] = Some(node);
            return id;
        }
        let id =
            NodeId(u32::try_from(self.nodes.len()).expect("there are no more nodes than pages"));
        self.nodes.push(Some(node));
        id
    }

    fn remove(&mut self, id: NodeId) -> PageId {
        let node = self.nodes[id.0 as usize]
            .take()
            .expect("a node is removed twice");
        assert!(
            node.children.is_empty(),
            "a node is removed before its children"
        );
        let siblings = self.siblings(node.salt, node.parent);
        siblings.remove(&node.tokens);
        if node.parent.is_none() && siblings.is_empty() {
            self.roots.remove(&node.salt);
        }
        self.vacant.push(id);
        node.page
    }
}
