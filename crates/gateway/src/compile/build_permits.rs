//! Places for builds that requests start: downloads and compiles take minutes, memory and bandwidth.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::error::Error;

/// Maximum number of builds that requests run concurrently.
pub(crate) const MAX_BUILDS: usize = 2;

/// The places of a gateway. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct BuildPermits {
    taken: Arc<AtomicUsize>,
}

/// A place for one build. It is free again when this value is dropped.
#[derive(Debug)]
#[must_use = "the place is free again when this is dropped"]
pub(crate) struct BuildPermit {
    taken: Arc<AtomicUsize>,
}

/// Right to build a package.
#[derive(Debug)]
pub(crate) enum BuildRight {
    /// Right of a command that a person runs.
    Operator,
    /// Right of a request that already has a place.
    Place(BuildPermit),
    /// Right of a request that takes a place when it builds.
    Request(BuildPermits),
}

impl BuildPermits {
    /// Takes a place.
    ///
    /// # Errors
    /// [`Error::TooManyBuilds`] if all places are taken.
    pub(crate) fn take(&self) -> Result<BuildPermit, Error> {
        let next = |taken: usize| (taken < MAX_BUILDS).then_some(taken + 1);
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
            Ok(_) => Ok(BuildPermit { taken: self.taken.clone() }),
            Err(running) => Err(Error::TooManyBuilds(running)),
        }
    }
}

impl BuildRight {
    /// Returns the place of a build, which it must keep until its end; `None` if it needs none.
    ///
    /// # Errors
    /// As [`BuildPermits::take`].
    pub(crate) fn place(self) -> Result<Option<BuildPermit>, Error> {
        match self {
            Self::Operator => Ok(None),
            Self::Place(place) => Ok(Some(place)),
            Self::Request(places) => places.take().map(Some),
        }
    }
}

impl Drop for BuildPermit {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_become_free() {
        let places = BuildPermits::default();
        let mut taken: Vec<BuildPermit> = (0..MAX_BUILDS).map(|_| places.take().unwrap()).collect();
        let error = BuildRight::Request(places.clone()).place().unwrap_err();
        assert!(matches!(error, Error::TooManyBuilds(MAX_BUILDS)), "{error}");
        assert!(error.retry_after().is_some());
        assert!(BuildRight::Operator.place().unwrap().is_none());
        let last = taken.pop().unwrap();
        let kept = BuildRight::Place(last).place().unwrap();
        assert!(places.take().is_err());
        drop(kept);
        assert!(BuildRight::Request(places).place().unwrap().is_some());
    }
}
