//! Keys and values of earlier sequences, as a radix tree of their tokens. A row of a medium is a token here.
//!
//! A node has up to [`NODE_TOKENS`] tokens, which follow those of its parent, with their keys and values. The first
//! tokens of a node's children differ, so common beginnings of sequences are in the tree once. A prefix is found by
//! comparing each of its tokens. Nodes without children are removed first, the least recently used one before others.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    ops::Range,
};

use super::prefix::common_prefix;
use crate::{
    executor::{KvBlock, KvSlice, StepError},
    position::Position,
};

/// Maximum number of tokens in a node. Memory is freed in these units.
const NODE_TOKENS: usize = 64;

/// Maximum number of tokens that are read from or written to a slot at once. An executor may have to move a whole row
/// for each read or write.
pub(crate) const PIECE_TOKENS: usize = 512;

/// Number of a node. Numbers are not reused.
type NodeId = u64;

/// Node without tokens, before the first token of every sequence.
const ROOT: NodeId = 0;

/// Keys and values of earlier sequences.
#[derive(Debug)]
pub struct PrefixTree {
    nodes: BTreeMap<NodeId, Node>,
    /// Nodes without children, by their last use.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Number of tokens in all nodes.
    tokens: usize,
    /// Number of nodes created so far.
    created: NodeId,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    tokens: Box<[Position]>,
    block: KvBlock,
    /// Children, by their first token.
    children: BTreeMap<Position, NodeId>,
    /// Last use. It is not before that of any child.
    used: u64,
}

/// A node on the path of a sequence.
struct PathNode<'a> {
    id: NodeId,
    node: &'a Node,
    /// Number of the node's first tokens that the sequence has.
    shared: usize,
}

impl Default for PrefixTree {
    /// Creates an empty tree.
    fn default() -> Self {
        let nodes = BTreeMap::from([(ROOT, Node::new(ROOT, &[], KvBlock::empty(), 0))]);
        Self { nodes, leaves: BTreeSet::new(), tokens: 0, created: ROOT }
    }
}

impl PrefixTree {
    /// Returns the number of tokens whose keys and values are in the tree.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of a sequence's first tokens whose keys and values are in the tree.
    pub fn longest(&self, tokens: &[Position]) -> usize {
        self.path(tokens).map(|step| step.shared).sum()
    }

    /// Returns the keys and values of a range of a sequence's tokens, as far as they are in the tree.
    pub fn slices(&self, tokens: &[Position], range: &Range<usize>) -> Vec<KvSlice<'_>> {
        let mut start = 0;
        let mut slices = Vec::new();
        for PathNode { node, shared, .. } in self.path(tokens) {
            let within = range.start.max(start)..range.end.min(start + shared);
            if !within.is_empty() {
                slices.push(KvSlice { block: &node.block, tokens: within.start - start..within.end - start });
            }
            start += shared;
        }
        slices
    }

    /// Records a use of a sequence's first tokens.
    pub fn touch(&mut self, tokens: &[Position], used: u64) {
        let path: Vec<NodeId> = self.path(tokens).map(|step| step.id).collect();
        path.into_iter().for_each(|id| self.set_used(id, used));
    }

    /// Adds the tokens of a sequence that are missing, as far as the tree then has at most `room` tokens. `read` returns
    /// the keys and values of a range of the sequence.
    ///
    /// # Errors
    /// The errors of `read`. The tokens that were added before remain.
    pub fn insert(
        &mut self,
        tokens: &[Position],
        used: u64,
        room: usize,
        mut read: impl FnMut(Range<usize>) -> Result<KvBlock, StepError>,
    ) -> Result<(), StepError> {
        let end = tokens.len().min(self.longest(tokens) + room.saturating_sub(self.tokens));
        let (mut parent, mut length) = self.branch(&tokens[..end])?;
        self.touch(tokens, used);
        while length < end {
            let piece = length..end.min(length + PIECE_TOKENS);
            let read = read(piece.clone())?;
            for start in piece.clone().step_by(NODE_TOKENS) {
                let own = start..piece.end.min(start + NODE_TOKENS);
                let block = read.slice(own.start - piece.start..own.end - piece.start)?;
                parent = self.add(Node::new(parent, &tokens[own], block, used));
            }
            length = piece.end;
        }
        Ok(())
    }

    /// Returns the last use of the node that is removed next.
    pub fn oldest(&self) -> Option<u64> {
        self.leaves.first().map(|&(used, _)| used)
    }

    /// Returns the tokens from the first one to the end of the node that is removed next, and their range in that node.
    pub fn oldest_path(&self) -> Option<(Vec<Position>, Range<usize>)> {
        let &(_, id) = self.leaves.first()?;
        let path = self.path_to(id);
        let start = path.len() - self.nodes.get(&id)?.tokens.len();
        let range = start..path.len();
        Some((path, range))
    }

    /// Returns the tokens of every path that ends in a node without children, most recently used first.
    pub fn paths(&self) -> impl Iterator<Item = Vec<Position>> {
        self.leaves.iter().rev().map(|&(_, id)| self.path_to(id))
    }

    /// Removes the node without children that was used least recently. Returns false if the tree is empty.
    pub fn remove_oldest(&mut self) -> bool {
        let Some((_, id)) = self.leaves.pop_first() else { return false };
        let Some(node) = self.nodes.remove(&id) else { return false };
        self.tokens -= node.tokens.len();
        if let (Some(parent), Some(first)) = (self.nodes.get_mut(&node.parent), node.tokens.first()) {
            parent.children.remove(first);
            if parent.children.is_empty() && node.parent != ROOT {
                self.leaves.insert((parent.used, node.parent));
            }
        }
        true
    }

    /// Returns the nodes along a sequence's tokens, up to the first token that differs.
    fn path<'a>(&'a self, tokens: &[Position]) -> impl Iterator<Item = PathNode<'a>> {
        let mut rest = tokens;
        let mut parent = self.nodes.get(&ROOT);
        iter::from_fn(move || {
            let id = *parent?.children.get(rest.first()?)?;
            let node = self.nodes.get(&id)?;
            let shared = common_prefix(&node.tokens, rest);
            rest = &rest[shared..];
            parent = (shared == node.tokens.len()).then_some(node);
            Some(PathNode { id, node, shared })
        })
    }

    /// Returns the tokens from the first one to the end of a node.
    fn path_to(&self, id: NodeId) -> Vec<Position> {
        let mut nodes = Vec::new();
        let mut next = id;
        while let Some(node) = self.nodes.get(&next).filter(|_| next != ROOT) {
            nodes.push(node);
            next = node.parent;
        }
        nodes.iter().rev().flat_map(|node| node.tokens.iter().copied()).collect()
    }

    /// Returns the node after which a sequence's next tokens belong, and the number of tokens up to there. A node that
    /// has only some of the sequence's tokens is divided.
    fn branch(&mut self, tokens: &[Position]) -> Result<(NodeId, usize), StepError> {
        let length = self.longest(tokens);
        let last = self.path(tokens).last().map(|step| (step.id, step.shared, step.node.tokens.len()));
        let Some((id, shared, whole)) = last else { return Ok((ROOT, 0)) };
        if shared == whole || length == tokens.len() {
            return Ok((id, length));
        }
        Ok((self.divide(id, shared)?, length))
    }

    /// Moves the first `at` tokens of a node to a new node before it. Returns that node.
    fn divide(&mut self, id: NodeId, at: usize) -> Result<NodeId, StepError> {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(ROOT) };
        let front = node.block.slice(0..at)?;
        let back = node.block.slice(at..node.tokens.len())?;
        let front = Node::new(node.parent, &node.tokens[..at], front, node.used);

        node.tokens = node.tokens[at..].into();
        node.block = back;
        self.tokens -= at;
        let first = node.tokens.first().copied();
        let upper = self.add(front);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.parent = upper;
        }
        // The new node is not a leaf.
        if let (Some(node), Some(first)) = (self.nodes.get_mut(&upper), first) {
            node.children.insert(first, id);
            self.leaves.remove(&(node.used, upper));
        }
        Ok(upper)
    }

    /// Adds a node without children to its parent.
    fn add(&mut self, node: Node) -> NodeId {
        self.created += 1;
        let id = self.created;
        self.tokens += node.tokens.len();
        if let (Some(parent), Some(&first)) = (self.nodes.get_mut(&node.parent), node.tokens.first()) {
            self.leaves.remove(&(parent.used, node.parent));
            parent.children.insert(first, id);
        }
        self.leaves.insert((node.used, id));
        self.nodes.insert(id, node);
        id
    }

    fn set_used(&mut self, id: NodeId, used: u64) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.used < used) else { return };
        if self.leaves.remove(&(node.used, id)) {
            self.leaves.insert((used, id));
        }
        node.used = used;
    }
}

impl Node {
    fn new(parent: NodeId, tokens: &[Position], block: KvBlock, used: u64) -> Self {
        Self { parent, tokens: tokens.into(), block, children: BTreeMap::new(), used }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{KvLayer, KvRows};

    /// Returns a block whose keys are these tokens.
    fn block(tokens: &[Position]) -> KvBlock {
        let number = |position: &Position| position.as_token().unwrap_or(0) as f32;
        let rows = KvRows::F32(tokens.iter().map(number).collect());
        let layer = KvLayer { heads: 1, head_size: 1, keys: rows.clone(), values: rows };
        KvBlock::new(tokens.len(), vec![layer]).unwrap()
    }

    /// Adds a sequence, and returns the number of tokens that were read.
    fn insert(tree: &mut PrefixTree, tokens: &[Position], used: u64, room: usize) -> usize {
        let mut read = 0;
        let outcome = tree.insert(tokens, used, room, |range| {
            read += range.len();
            Ok(block(&tokens[range]))
        });
        outcome.unwrap();
        read
    }

    /// Checks that the tree has exactly the first `length` tokens of a sequence, with their keys.
    fn check(tree: &PrefixTree, tokens: &[Position], length: usize) {
        assert_eq!(tree.longest(tokens), length, "{tokens:?}");
        for range in [0..length, length / 3..length / 2] {
            let slices = tree.slices(tokens, &range);
            let found = if range.is_empty() { KvBlock::empty() } else { KvBlock::join(&slices).unwrap() };
            let expected = if range.is_empty() { KvBlock::empty() } else { block(&tokens[range]) };
            assert_eq!(found, expected);
        }
    }

    /// Returns tokens that differ from the first one on for each number.
    fn words(number: u32, count: u32) -> Vec<Position> {
        (0..count).map(|i| Position::token(1000 * number + i)).collect()
    }

    #[test]
    fn common_beginnings_are_held_once_and_sequences_are_found_by_all_of_their_tokens() {
        let mut tree = PrefixTree::default();
        let system = words(1, 700);
        let agents: Vec<Vec<Position>> =
            (2..6).map(|agent| [&system[..], &words(agent, 90)].concat()).collect();
        let read: Vec<usize> = agents.iter().map(|agent| insert(&mut tree, agent, 1, 10_000)).collect();
        assert_eq!((read, tree.tokens()), (vec![790, 90, 90, 90], 700 + 4 * 90));
        for agent in &agents {
            check(&tree, agent, 790);
            check(&tree, &[&agent[..], &[Position::token(7); 2]].concat(), 790);
            check(&tree, &agent[..350], 350);
            let mut other = agent.clone();
            for place in [0, 63, 64, 65, 699, 700, 789] {
                let token = std::mem::replace(&mut other[place], Position::token(999_999));
                check(&tree, &other, place);
                other[place] = token;
            }
        }
        check(&tree, &words(9, 30), 0);
        check(&tree, &[], 0);
        assert_eq!(insert(&mut tree, &agents[2], 2, 10_000), 0);
    }

    #[test]
    fn what_was_used_least_recently_leaves_first_from_its_end_on() {
        let mut tree = PrefixTree::default();
        let [first, second, third] = [1, 2, 3].map(|number| words(number, 100));
        insert(&mut tree, &first, 1, 1000);
        insert(&mut tree, &second, 2, 1000);
        insert(&mut tree, &[&first[..50], &third].concat(), 3, 1000);
        assert_eq!((tree.oldest(), tree.tokens()), (Some(1), 300));
        // The end of the first sequence, whose beginning was used later.
        assert_eq!(tree.oldest_path().unwrap(), (first.clone(), 64..100));
        assert!(tree.remove_oldest());
        check(&tree, &first, 64);
        assert!(tree.remove_oldest());
        check(&tree, &first, 50);
        tree.touch(&second, 4);
        while tree.oldest() == Some(3) {
            assert!(tree.remove_oldest());
        }
        check(&tree, &first, 0);
        check(&tree, &second, 100);
        assert_eq!(tree.paths().collect::<Vec<_>>(), [second]);
        while tree.remove_oldest() {}
        assert_eq!((tree.tokens(), tree.oldest(), tree.oldest_path()), (0, None, None));
    }

    #[test]
    fn no_more_is_added_than_there_is_room_for() {
        let mut tree = PrefixTree::default();
        let long = words(1, 700);
        assert_eq!(insert(&mut tree, &long, 1, 130), 130);
        check(&tree, &long, 130);
        assert_eq!(insert(&mut tree, &words(2, 80), 2, 130), 0);
        assert_eq!(insert(&mut tree, &long, 3, 700), 570);
        check(&tree, &long, 700);
        let refused = tree.insert(&words(3, 80), 4, 1000, |_| Err(StepError::bad_plan("no")));
        assert!(refused.is_err());
        assert_eq!(tree.tokens(), 700);
    }
}
