//! A parallel region: the parallel loops of several steps on threads that are started once.
//!
//! Each thread enters the region once. The first one leads: it runs all steps and publishes their loops one after the
//! other. The other threads help: they claim tasks of the published loop until the leader closes the region. The leader
//! claims tasks as well, so no helper is needed, and a helper may arrive at any time or not at all. A loop ends when
//! all of its tasks have ended, so no task outlives its step.

use std::{
    cell::UnsafeCell,
    hint,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    thread,
};

/// Number of checks of a condition before a waiting thread offers its core to other threads.
const SPINS: u32 = 1 << 12;

/// Bits of the tickets with the number of tasks that no thread has claimed.
const TASK_MASK: u64 = u32::MAX as u64;

/// Bits of the tickets with the number of the loop. One bit is left, so that no tickets equal [`CLOSED`].
const LOOP_MASK: u64 = (i32::MAX as u64) << 32;

/// Tickets of a closed region.
const CLOSED: u64 = u64::MAX;

/// State of a region, shared by its threads.
#[derive(Default)]
pub(super) struct Region {
    led: AtomicBool,
    /// Number of the loop and of its unclaimed tasks. The number of the loop keeps a helper from claiming a task of
    /// a later loop with the tickets of an earlier one.
    tickets: CacheLine<AtomicU64>,
    /// Number of tasks of the loop that have ended.
    ended: CacheLine<AtomicUsize>,
    panicked: AtomicBool,
    /// Tasks of the current loop. The leader writes them while no task is unclaimed or running; other threads read them
    /// only after they have claimed one.
    tasks: UnsafeCell<LoopTasks>,
}

// SAFETY: `tasks` is the only field that is not `Sync`. The leader writes it while no thread has claimed a task, and a
// thread reads it only between the claim and the end of a task. The task itself may be shared between threads.
unsafe impl Sync for Region {}

/// A value on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct CacheLine<T>(T);

/// Tasks of one loop, which share a function.
#[derive(Clone, Copy)]
struct LoopTasks {
    /// Function for an index. It is of the type that `run` expects.
    task: *const (),
    run: unsafe fn(*const (), usize),
    count: usize,
}

impl Default for LoopTasks {
    fn default() -> Self {
        /// # Safety
        /// There are no requirements: it does nothing.
        unsafe fn nothing(_: *const (), _: usize) {}
        Self { task: ptr::null(), run: nothing, count: 0 }
    }
}

/// The right of one thread to run the steps of a region. The region is closed when it is dropped.
pub(super) struct Leader<'r> {
    region: &'r Region,
    /// A task must not start another loop, so it must not have access to the leader.
    own_thread: PhantomData<*const ()>,
}

impl Region {
    /// Returns the leader for the first caller, and `None` for all others.
    pub(super) fn lead(&self) -> Option<Leader<'_>> {
        let first = !self.led.swap(true, Ordering::Relaxed);
        // A leader that is created for another caller would close the region.
        first.then(|| Leader { region: self, own_thread: PhantomData })
    }

    /// Runs tasks of the leader's loops until the region is closed.
    pub(super) fn help(&self) {
        loop {
            let mut tickets = 0;
            wait_until(|| {
                tickets = self.tickets.0.load(Ordering::Relaxed);
                tickets & TASK_MASK != 0
            });
            if tickets == CLOSED {
                return;
            }
            self.run_tasks();
        }
    }

    /// Claims and runs tasks of the current loop until all are claimed.
    fn run_tasks(&self) {
        loop {
            let tickets = self.tickets.0.load(Ordering::Relaxed);
            if tickets == CLOSED || tickets & TASK_MASK == 0 {
                return;
            }
            let claim = self.tickets.0.compare_exchange_weak(
                tickets,
                tickets - 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if claim.is_err() {
                continue;
            }
            // SAFETY: this thread has claimed a task that has not ended, so the leader does not write the tasks.
            let LoopTasks { task, run, count } = unsafe { *self.tasks.get() };
            let index = count - (tickets & TASK_MASK) as usize;
            // SAFETY: the leader has published a function of the type that `run` expects, and keeps it until all tasks
            // have ended.
            if catch_unwind(AssertUnwindSafe(|| unsafe { run(task, index) })).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.ended.0.fetch_add(1, Ordering::Release);
        }
    }
}

impl Leader<'_> {
    /// Runs `task` for every number below `count` on the threads of the region, and waits until all have ended. Returns
    /// `false` if a task panicked.
    #[must_use]
    pub(super) fn parallel<F: Fn(usize) + Sync>(&self, count: usize, task: &F) -> bool {
        /// # Safety
        /// `task` must point to a value of the type `F`.
        unsafe fn run<F: Fn(usize)>(task: *const (), index: usize) {
            // SAFETY: the caller guarantees it.
            (unsafe { &*task.cast::<F>() })(index);
        }
        let region = self.region;
        if count as u64 > TASK_MASK {
            return false;
        }
        region.ended.0.store(0, Ordering::Relaxed);
        // SAFETY: all tasks of earlier loops have ended and none is unclaimed, so no other thread reads the tasks.
        unsafe { *region.tasks.get() = LoopTasks { task: ptr::from_ref(task).cast(), run: run::<F>, count } };
        let next = region.tickets.0.load(Ordering::Relaxed).wrapping_add(1 << 32) & LOOP_MASK;
        region.tickets.0.store(next | count as u64, Ordering::Release);
        region.run_tasks();
        wait_until(|| region.ended.0.load(Ordering::Acquire) == count);
        !region.panicked.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.region.tickets.0.store(CLOSED, Ordering::Relaxed);
    }
}

/// Waits actively at first, because other threads are usually about to fulfil the condition.
fn wait_until(mut is_fulfilled: impl FnMut() -> bool) {
    let mut spins = 0;
    while !is_fulfilled() {
        if spins < SPINS {
            spins += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    /// Enters a new region with several threads. The first one runs `steps`.
    fn enter(threads: usize, steps: impl Fn(&Leader<'_>) + Sync) {
        let region = Region::default();
        let (region, steps) = (&region, &steps);
        let work = || match region.lead() {
            Some(leader) => steps(&leader),
            None => region.help(),
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            work();
            others.into_iter().for_each(|other| assert!(other.join().is_ok()));
        });
    }

    #[test]
    fn each_task_of_each_loop_runs_once() {
        for threads in 1..5 {
            let sums: Vec<AtomicUsize> = (0..9).map(|_| AtomicUsize::new(0)).collect();
            let total = AtomicUsize::new(0);
            enter(threads, |leader| {
                for round in 0..200 {
                    let count = round % 10;
                    let before = total.load(Ordering::Relaxed);
                    let add = |index: usize| {
                        sums[index].fetch_add(1, Ordering::Relaxed);
                        total.fetch_add(1, Ordering::Relaxed);
                    };
                    assert!(leader.parallel(count, &add));
                    assert_eq!(total.load(Ordering::Relaxed), before + count, "all have ended");
                }
            });
            let found: Vec<usize> = sums.into_iter().map(AtomicUsize::into_inner).collect();
            assert_eq!(found, (0..9).map(|index| (9 - index) * 20).collect::<Vec<_>>(), "{threads} threads");
        }
    }

    #[test]
    fn a_loop_sees_what_earlier_loops_wrote() {
        let numbers = Mutex::new(vec![1u64; 64]);
        enter(3, |leader| {
            let mut numbers = numbers.lock().unwrap_or_else(|_| panic!("no other thread locks it"));
            for _ in 0..20 {
                let next: Vec<AtomicU64> = numbers.iter().map(|_| AtomicU64::new(0)).collect();
                let add = |index: usize| {
                    let sum = numbers[index].wrapping_add(numbers[(index + 1) % 64]);
                    next[index].store(sum, Ordering::Relaxed);
                };
                assert!(leader.parallel(64, &add));
                *numbers = next.into_iter().map(AtomicU64::into_inner).collect();
            }
        });
        assert_eq!(numbers.into_inner().ok(), Some(vec![1 << 20; 64]));
    }

    #[test]
    fn threads_share_the_work() {
        // Each task waits for the other one, so they end only if two threads run them.
        let both = Barrier::new(2);
        enter(2, |leader| {
            assert!(leader.parallel(2, &|_| {
                both.wait();
            }));
        });
    }

    #[test]
    fn other_threads_may_arrive_late_or_never() {
        let region = Region::default();
        let leader = region.lead();
        assert!(region.lead().is_none(), "one thread leads");
        let ran = AtomicUsize::new(0);
        let count = |_| {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        assert!(leader.as_ref().is_some_and(|leader| leader.parallel(5, &count)));
        // The region is still open after another thread was refused.
        thread::scope(|scope| {
            let helper = scope.spawn(|| region.help());
            assert!(leader.as_ref().is_some_and(|leader| leader.parallel(5, &count)));
            drop(leader);
            assert!(helper.join().is_ok());
        });
        assert_eq!(ran.into_inner(), 10);
        assert!(region.lead().is_none());
        region.help();
    }

    #[test]
    fn panics_of_tasks_are_reported() {
        for threads in [1, 3] {
            let ran = AtomicUsize::new(0);
            enter(threads, |leader| {
                let fail = |index: usize| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert_ne!(index, 3, "a task that fails");
                };
                assert!(!leader.parallel(8, &fail));
                assert!(leader.parallel(3, &fail), "later loops run as usual");
            });
            assert_eq!(ran.into_inner(), 11);
        }
    }

    #[test]
    fn a_panic_of_the_leader_releases_the_others() {
        let region = Region::default();
        let work = || match region.lead() {
            Some(leader) => {
                assert!(leader.parallel(2, &|_| ()));
                panic!("a step that fails")
            }
            None => region.help(),
        };
        let results = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().is_ok()).collect::<Vec<_>>()
        });
        assert_eq!(results.iter().filter(|&&ended| ended).count(), 2, "{results:?}");
    }
}
