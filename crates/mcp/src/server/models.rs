//! The model of a call: the one that the call names, else the operator's, else an installed one.

use narthex_gateway::{Cancel, Error, Gateway, LoadStart, ReadyModel, models::ModelKind};
use narthex_spec::progress::Quiet;

/// Models that a call may use.
pub(super) struct CallModel<'a> {
    /// Model named by the call.
    pub(super) named: Option<&'a str>,
    /// Model chosen by the operator. It may be a path.
    pub(super) configured: Option<&'a str>,
    /// Required kind.
    pub(super) kind: ModelKind,
}

/// A model in memory, with its name for the answer.
pub(super) struct NamedModel {
    pub(super) name: String,
    pub(super) model: ReadyModel,
}

impl CallModel<'_> {
    /// Loads the model, without a time limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the call names no model and none is installed; [`Error::Cancelled`].
    pub(super) fn load(&self, gateway: &Gateway, cancel: &Cancel) -> Result<NamedModel, Error> {
        let configured =
            self.configured.filter(|configured| self.named.is_none_or(|named| named == *configured));
        let name = match (configured, self.named) {
            (Some(configured), _) => gateway.load(configured, &Quiet, cancel)?.id(),
            (None, Some(named)) => named.to_owned(),
            (None, None) => self.newest(gateway)?,
        };
        let model = match gateway.start_load(&name)? {
            LoadStart::Ready(model) => model,
            LoadStart::Pending(load) => load.wait_for_end(cancel)?,
        };
        Ok(NamedModel { name, model })
    }

    fn newest(&self, gateway: &Gateway) -> Result<String, Error> {
        let newest = gateway.newest_installed(&[self.kind])?;
        newest.map(|name| name.to_string()).ok_or_else(|| {
            let expected = self.kind.describe();
            let message = format!(
                "expected the name of {expected}, found none, and none is installed; `narthex list --available` shows every \
                 name"
            );
            Error::invalid("model", message)
        })
    }
}
