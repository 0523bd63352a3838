//! The gateway of a server, which other settings replace while the server runs.

use std::sync::Arc;

use narthex_gateway::Gateway;
use parking_lot::RwLock;

/// The gateway of a server. Clones share it. A request keeps the gateway with which it began.
///
/// ```
/// use narthex_gateway::{Config, Gateway};
/// use narthex_server::CurrentGateway;
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let current = CurrentGateway::from(Gateway::open(config.clone())?);
/// let default_model = Some("smollm2:135m".to_owned());
/// current.replace(current.get().with_settings(Config { default_model, ..config })?);
/// assert!(current.get().config().default_model.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CurrentGateway(Arc<RwLock<Gateway>>);

impl From<Gateway> for CurrentGateway {
    fn from(gateway: Gateway) -> Self {
        Self(Arc::new(RwLock::new(gateway)))
    }
}

impl CurrentGateway {
    /// Returns the gateway for a new request.
    pub fn get(&self) -> Gateway {
        self.0.read().clone()
    }

    /// Replaces the gateway, which must share its models with the one before: [`Gateway::with_settings`] returns such a
    /// gateway.
    pub fn replace(&self, gateway: Gateway) {
        *self.0.write() = gateway;
    }
}
