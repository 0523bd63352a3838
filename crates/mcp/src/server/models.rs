//! The model of a call: the one that it names, else the operator's, else an installed one.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use narthex_gateway::{Cancel, Error, Gateway, models::ModelKind};
use narthex_spec::progress::Quiet;

/// Interval between looks at a cancellation during a load.
const INTERVAL: Duration = Duration::from_millis(100);

/// Models that a call may use.
pub(super) struct CallModel<'a> {
    /// Named by the call.
    pub(super) named: Option<&'a str>,
    /// Chosen by the operator; it may be a path.
    pub(super) configured: Option<&'a str>,
    /// Required kind.
    pub(super) kind: ModelKind,
}

impl CallModel<'_> {
    /// Loads the model, however long that takes, and returns its name for requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the call names no model and none is installed; [`Error::Cancelled`].
    pub(super) fn load(&self, gateway: &Gateway, cancel: &Cancel) -> Result<String, Error> {
        if let Some(configured) = self.configured
            && self.named.is_none_or(|named| named == configured)
        {
            return Ok(gateway.load(configured, &Quiet, cancel)?.id());
        }
        let model = match self.named {
            Some(named) => named.to_owned(),
            None => self.newest(gateway)?,
        };
        load_requested(gateway, &model, cancel)?;
        Ok(model)
    }

    fn newest(&self, gateway: &Gateway) -> Result<String, Error> {
        let newest = gateway.newest_installed(&[self.kind])?;
        newest.map(|name| name.to_string()).ok_or_else(|| Error::Invalid {
            param: "model",
            message: format!(
                "model: expected the name of {}, found none, and none is installed; `narthex list --available` shows every \
                 name",
                self.kind.describe()
            ),
        })
    }
}

/// Loads a model within the rights of a request.
fn load_requested(gateway: &Gateway, model: &str, cancel: &Cancel) -> Result<(), Error> {
    let Some(load) = gateway.start_load(model)? else { return Ok(()) };
    let (ended, end) = mpsc::channel();
    let wake = move || {
        // Nobody waits any more if the call was cancelled.
        let _ = ended.send(());
    };
    let place = load.on_end(wake)?;
    while end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
    }
    drop(place);
    load.check()
}
