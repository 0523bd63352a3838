//! The model of a call: the one that it names, else the operator's, else an installed one.

use narthex_gateway::{Cancel, Error, Gateway, LoadPlace, models::ModelKind};
use narthex_spec::progress::Quiet;

/// Models that a call may use.
pub(super) struct CallModel<'a> {
    /// Named by the call.
    pub(super) named: Option<&'a str>,
    /// Chosen by the operator; it may be a path.
    pub(super) configured: Option<&'a str>,
    /// Required kind.
    pub(super) kind: ModelKind,
}

/// A model in memory. If the call waited for its load, it stays there until this is dropped.
pub(super) struct ReadyModel {
    /// Name for requests.
    pub(super) name: String,
    _place: Option<LoadPlace>,
}

impl CallModel<'_> {
    /// Loads the model, however long that takes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the call names no model and none is installed; [`Error::Cancelled`].
    pub(super) fn load(&self, gateway: &Gateway, cancel: &Cancel) -> Result<ReadyModel, Error> {
        if let Some(configured) = self.configured
            && self.named.is_none_or(|named| named == configured)
        {
            let name = gateway.load(configured, &Quiet, cancel)?.id();
            return Ok(ReadyModel { name, _place: None });
        }
        let name = match self.named {
            Some(named) => named.to_owned(),
            None => self.newest(gateway)?,
        };
        let load = gateway.start_load(&name)?;
        let place = load.map(|load| load.wait_for_end(cancel)).transpose()?;
        Ok(ReadyModel { name, _place: place })
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
