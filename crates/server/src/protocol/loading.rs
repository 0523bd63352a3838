//! Waiting for a model to load, without occupying a thread.

use narthex_gateway::{LoadStart, ReadyModel};
use tokio::{sync::oneshot, time::timeout};

use crate::{app::App, error::ApiError, waits::wait_for};

/// Waits until a model is in memory, up to the configured time, and returns it. The number of requests that wait for a
/// model is limited, and a client that disconnects frees its place.
///
/// # Errors
/// 403 for a request with a device map from a caller without admin rights, because other callers use the model too.
pub(crate) async fn wait(app: &App, model: &str) -> Result<ReadyModel, ApiError> {
    refuse_upstream(app, model)?;
    let gateway = app.gateway.clone();
    let name = model.to_owned();
    let device_map = app.device_map.get().cloned();
    if device_map.is_some() {
        app.check_admin("device_map")?;
    }
    let load = match app.shared.jobs.run(move || gateway.start_load_on(&name, device_map.as_ref())).await? {
        LoadStart::Ready(model) => {
            app.meter.work.add_model(&model.id());
            return Ok(model);
        }
        LoadStart::Pending(load) => load,
    };
    let (ended, end) = oneshot::channel();
    // The receiver is gone if the client has disconnected.
    let _place = load.on_end(move || _ = ended.send(()))?;
    // The outcome of the load is read below, also after a timeout.
    let _ = wait_for("a model that is loading", timeout(app.gateway.config().load_wait, end)).await;
    let model = load.model()?;
    app.meter.work.add_model(&model.id());
    Ok(model)
}

/// Refuses a model of an upstream, which only the paths for passed requests accept.
///
/// # Errors
/// 400, with those paths.
fn refuse_upstream(app: &App, model: &str) -> Result<(), ApiError> {
    let Some(route) = app.gateway.upstream_route(model)? else { return Ok(()) };
    let message = format!(
        "{} is a model of the upstream {}, which answers at /v1/chat/completions, /v1/completions, /v1/embeddings and \
         /v1/responses; send the request there",
        route.name, route.upstream
    );
    Err(ApiError::bad_request("model", message).with_code("upstream_model"))
}
