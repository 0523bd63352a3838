//! The port between the engine and a storage of prefixes that outlives it, such as files.
//!
//! A prefix is stored in blocks of [`BLOCK_TOKENS`] tokens. The key of a block identifies its tokens and all tokens
//! before them. The engine offers the complete blocks of its slots one by one, and asks for the blocks of a prompt that
//! no slot holds. No method of the port may block: reads and writes happen on threads of the implementation, which report
//! their progress to the engine ([`StorageProgress`](crate::worker::StorageProgress)).

use crate::{
    executor::{KvBlock, StepError},
    position::Position,
};

/// Number of tokens in a stored block.
pub const BLOCK_TOKENS: usize = 64;

/// Key of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    /// Number of blocks before it in its prefix.
    pub index: u32,
    /// Digest of its tokens and of all tokens before them, with the digests of media.
    pub hash: [u8; 32],
}

/// State of a block in a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// The block is stored, or waits to be written.
    Stored,
    /// The block is not stored and can be written.
    Missing,
    /// The block is not stored, and the queue of writes is full.
    QueueFull,
    /// The block is not stored, and the storage accepts no more writes.
    Closed,
}

/// A storage of blocks. Each belongs to one model on one device, so that its keys and values fit.
pub trait PrefixStorage: Send {
    /// Returns the key of the block with these tokens after the block `parent`, or `None` if a block with a medium
    /// cannot be identified, because its digest was forgotten.
    fn key(&self, parent: Option<&BlockKey>, tokens: &[Position]) -> Option<BlockKey>;

    /// Returns the state of a block, and records its use if it is stored.
    fn state(&mut self, key: &BlockKey) -> BlockState;

    /// Queues a block to be written. It is dropped if the queue is full.
    fn write(&mut self, key: BlockKey, block: KvBlock);

    /// Starts to read the consecutive blocks of a prefix.
    fn read(&mut self, keys: Vec<BlockKey>) -> Box<dyn PrefixRead>;

    /// Removes a block that does not fit the model.
    fn remove(&mut self, key: &BlockKey, error: &StepError);
}

/// A read that has been started. Dropping it discards the outcome.
pub trait PrefixRead: Send {
    /// Returns the blocks in order, up to the first one that could not be read, or `None` while the read runs. The read
    /// ends within five seconds, after which the engine polls it without a report of progress.
    fn poll(&mut self) -> Option<Vec<KvBlock>>;
}
