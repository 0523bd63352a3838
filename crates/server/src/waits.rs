//! Waits of requests, which state what they wait for.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Instant,
};

/// Waits for a resource. If it is not free at once, the log gets its name and the time of the wait.
pub(crate) async fn wait_for<T>(resource: &'static str, wait: impl Future<Output = T>) -> T {
    let mut wait = pin!(wait);
    if let Poll::Ready(value) = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await {
        return value;
    }

    tracing::debug!(resource, "a request waits");
    let started = Instant::now();
    let value = wait.await;
    tracing::debug!(resource, waited = ?started.elapsed(), "a request has waited");
    value
}

#[cfg(test)]
mod tests {
    use std::{fmt::Debug, sync::Arc};

    use parking_lot::Mutex;
    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
    };

    use super::*;

    /// Keeps the resources in events.
    #[derive(Clone, Default)]
    struct Resources(Arc<Mutex<Vec<String>>>);

    impl Visit for Resources {
        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == "resource" {
                self.0.lock().push(value.to_owned());
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl Subscriber for Resources {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_wait_states_its_resource() {
        let resources = Resources::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tracing::subscriber::with_default(resources.clone(), || {
            runtime.block_on(async {
                assert_eq!(wait_for("a thread", async { 1 }).await, 1);
                assert!(resources.0.lock().is_empty());
                wait_for("a model", tokio::task::yield_now()).await;
            });
        });
        assert_eq!(*resources.0.lock(), ["a model", "a model"]);
    }
}
