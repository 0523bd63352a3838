//! Waiting for a model to load, without a thread.

use narthex_gateway::{LoadPlace, PendingLoad};
use tokio::{sync::oneshot, time::timeout};

use crate::{app::App, error::ApiError};

/// Waits until a model is in memory, up to the configured time. The number of requests that wait for a model is
/// limited, and a client that disconnects frees its place. The model stays in memory until the returned place is
/// dropped.
pub(crate) async fn wait(app: &App, model: &str) -> Result<Option<LoadPlace>, ApiError> {
    let (gateway, name) = (app.gateway.clone(), model.to_owned());
    let load: Option<PendingLoad> = app.shared.jobs.run(move || gateway.start_load(&name)).await?;
    let Some(load) = load else { return Ok(None) };
    let (ended, end) = oneshot::channel();
    let wake = move || {
        // The receiver is gone if the client has disconnected.
        let _ = ended.send(());
    };
    let place = load.on_end(wake)?;
    // The outcome of the load is read below, also after a timeout.
    let _ = timeout(app.gateway.config().load_wait, end).await;
    load.check()?;
    Ok(Some(place))
}
