//! Turns on a device that only one model at a time can use, in order of arrival.
//!
//! It is our own ticket lock, because a fair mutex lets a thread that has just arrived overtake threads that are about
//! to sleep.

use parking_lot::{Condvar, Mutex};

/// Queue for a device.
#[derive(Default)]
pub struct DeviceQueue {
    tickets: Mutex<Tickets>,
    turn: Condvar,
}

#[derive(Default)]
struct Tickets {
    /// Number of the next ticket.
    next: u64,
    /// Number of the ticket whose turn it is.
    serving: u64,
}

/// A turn on a device. It ends when this value is dropped.
pub struct DeviceTurn<'a>(&'a DeviceQueue);

impl DeviceQueue {
    /// Waits for a turn.
    pub fn wait(&self) -> DeviceTurn<'_> {
        let mut tickets = self.tickets.lock();
        let own = tickets.next;
        tickets.next += 1;
        self.turn.wait_while(&mut tickets, |tickets| tickets.serving != own);
        DeviceTurn(self)
    }

    /// Returns the number of turns that have ended.
    pub fn served(&self) -> u64 {
        self.tickets.lock().serving
    }
}

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        self.0.tickets.lock().serving += 1;
        self.0.turn.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn turns_come_in_the_order_of_asking() {
        let queue = DeviceQueue::default();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let held = queue.wait();
            for asker in 0..5u64 {
                let (queue, order) = (&queue, &order);
                scope.spawn(move || {
                    let _turn = queue.wait();
                    order.lock().push(asker);
                });
                while queue.tickets.lock().next < asker + 2 {
                    thread::yield_now();
                }
            }
            assert!(order.lock().is_empty());
            drop(held);
        });
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
    }
}
