//! A global allocator that counts, for tests of memory. A test program that uses it has a single test, because tests at
//! once would count each other's memory.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// The system's allocator, which counts allocations and the bytes that they hold.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocations: AtomicUsize,
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl CountingAllocator {
    /// Creates an allocator for a `#[global_allocator]`.
    pub const fn new() -> Self {
        Self { allocations: AtomicUsize::new(0), held: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Returns the number of allocations so far.
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Returns the bytes that are allocated.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the maximum of the allocated bytes since [`Self::reset_peak`].
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Begins a new maximum, and returns the bytes that are allocated.
    pub fn reset_peak(&self) -> usize {
        let held = self.held();
        self.peak.store(held, Ordering::Relaxed);
        held
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let held = self.held.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        self.peak.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.held.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
