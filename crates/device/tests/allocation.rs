//! A decode step allocates no memory on the host, as the engine promises for each token.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use narthex_engine::executor::{Executor, LogitRows, StepPlan};
use narthex_spec::{Scheme, SlotId};
use support::{Package, prompt, step};

/// An allocator that counts the allocations of the current thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller fulfils the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steps_of_the_same_batch_allocate_nothing() {
    let package = Package::llama(Scheme::W8);
    assert!(COUNT.get() > 0, "nothing is counted");
    let mut executor = package.executor();
    for slot in [0, 1, 3] {
        step(&mut executor, &[(slot, 0, &prompt(slot, 4 + slot as usize), LogitRows::Last)]).unwrap();
    }
    let mut plan = StepPlan::default();
    let mut counted = Vec::with_capacity(24);
    for index in 0..24 {
        plan.clear();
        for slot in [0, 1, 3] {
            plan.push(SlotId(slot), 4 + slot as usize + index, &[index as u32 + 9], LogitRows::Last);
        }
        let before = COUNT.get();
        executor.step(&plan).unwrap();
        counted.push(COUNT.get() - before);
    }
    assert_eq!(counted[1..], [0; 23], "allocations per step");
}
