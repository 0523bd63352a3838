//! Permits for builds that requests start: downloads and compiles take minutes, memory and bandwidth.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::error::Error;

/// Maximum number of builds that requests run concurrently.
pub(crate) const MAX_BUILDS: usize = 2;

/// The permits of a gateway. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct BuildPermits {
    taken: Arc<AtomicUsize>,
}

/// Permit for one build. It is returned when this value is dropped.
#[derive(Debug)]
#[must_use = "the permit is returned when this is dropped"]
pub(crate) struct BuildPermit {
    taken: Arc<AtomicUsize>,
}

/// Right to build a package.
#[derive(Debug)]
pub(crate) enum BuildRight {
    /// A command that a person runs needs no permit.
    Operator,
    /// A request has this permit already.
    Permit(BuildPermit),
    /// A request takes one of these permits when it builds.
    Request(BuildPermits),
}

impl BuildPermits {
    /// Takes a permit.
    ///
    /// # Errors
    /// [`Error::TooManyBuilds`] if all permits are taken.
    pub(crate) fn take(&self) -> Result<BuildPermit, Error> {
        match self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken: usize| {
            (taken < MAX_BUILDS).then_some(taken + 1)
        }) {
            Ok(_) => Ok(BuildPermit { taken: self.taken.clone() }),
            Err(running) => Err(Error::TooManyBuilds(running)),
        }
    }
}

impl BuildRight {
    /// Returns the permit of a build, which it must keep until its end; `None` if it needs none.
    ///
    /// # Errors
    /// As [`BuildPermits::take`].
    pub(crate) fn permit(self) -> Result<Option<BuildPermit>, Error> {
        match self {
            Self::Operator => Ok(None),
            Self::Permit(permit) => Ok(Some(permit)),
            Self::Request(permits) => permits.take().map(Some),
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
    fn permits_are_limited_and_returned() {
        let permits = BuildPermits::default();
        let mut taken: Vec<BuildPermit> = (0..MAX_BUILDS).map(|_| permits.take().unwrap()).collect();
        let error = BuildRight::Request(permits.clone()).permit().unwrap_err();
        assert!(matches!(error, Error::TooManyBuilds(MAX_BUILDS)), "{error}");
        assert!(error.retry_after().is_some());
        assert!(BuildRight::Operator.permit().unwrap().is_none());
        let last = taken.pop().unwrap();
        let kept = BuildRight::Permit(last).permit().unwrap();
        assert!(permits.take().is_err());
        drop(kept);
        assert!(BuildRight::Request(permits).permit().unwrap().is_some());
    }
}
