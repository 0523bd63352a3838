//! Lines at the start of a server: its models, the devices of this machine, and the access rules.

use narthex_gateway::{
    Gateway, PlacementReport,
    devices::DeviceStatus,
    models::{ModelListing, ModelStatus},
};
use narthex_server::AccessRules;
use narthex_spec::{DeviceKind, DeviceOrder};

/// Renders the start of a server.
pub(crate) fn startup(gateway: &Gateway, rules: &AccessRules) -> String {
    let installed = gateway.models().unwrap_or_default();
    let models = models(&gateway.status(), &installed);
    let devices = devices(&gateway.devices());
    format!("models:  {models}\ndevices: {devices}\naccess:  {rules}")
}

/// Renders the models in memory, and the number of those that a request loads.
fn models(loaded: &[ModelStatus], known: &[ModelListing]) -> String {
    let loaded: Vec<String> = loaded
        .iter()
        .map(|model| {
            let placement = model.placement.as_ref();
            let device = placement.map_or_else(|| "no device".to_owned(), PlacementReport::name);
            format!("{} on {device}", model.id())
        })
        .collect();
    let installed = known.iter().filter(|model| !model.installed.is_empty()).count();
    let loaded = if loaded.is_empty() { "none in memory".to_owned() } else { loaded.join(", ") };
    format!("{loaded}; {installed} installed, loaded on request")
}

/// Renders the devices that are usable, and those that the default order would use if they were. Software that stands in
/// for an NPU is no device of the machine, and is used only if it is named.
fn devices(devices: &[DeviceStatus]) -> String {
    let order = DeviceOrder::auto();
    let usable = devices
        .iter()
        .filter(|status| status.usable && status.device.kind() != DeviceKind::StandIn)
        .map(|status| status.device.to_string());
    let mut text = usable.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        text.push_str("none; `narthex doctor` shows the reasons");
    }
    for status in devices {
        if status.present && !status.usable && order.devices().contains(&status.device) {
            let reason = status.reason.as_deref().unwrap_or("unknown reason");
            text.push_str(&format!("; {} not usable: {reason}", status.device));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use narthex_gateway::models::ModelState;
    use narthex_spec::{DeviceName, OpenVinoDevice, Scheme};

    use super::*;

    #[test]
    fn devices_that_cannot_be_used_have_a_reason() {
        let status = |device, usable, present| DeviceStatus {
            device,
            usable,
            present,
            reason: (!usable).then(|| "the qnn runtime is not installed".to_owned()),
            fix: None,
        };
        let found = [
            status(DeviceName::Qnn, false, true),
            status(DeviceName::QnnEmulation, true, true),
            status(DeviceName::OpenVino(OpenVinoDevice::Cpu), true, true),
            status(DeviceName::CoreMl, false, false),
            status(DeviceName::Cpu, true, true),
        ];
        assert_eq!(devices(&found), "cpu; qnn not usable: the qnn runtime is not installed");
        assert!(devices(&[]).contains("narthex doctor"));
    }

    #[test]
    fn models_in_memory_are_named() {
        assert_eq!(models(&[], &[]), "none in memory; 0 installed, loaded on request");
        let status = ModelStatus {
            name: "tiny".parse().unwrap(),
            kind: None,
            scheme: Scheme::W4,
            state: ModelState::Ready,
            placement: None,
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
            kv_cache: None,
            certificate: None,
            numerics: Vec::new(),
            package_bytes: None,
            draft_model: None,
            expires_in: None,
        };
        assert_eq!(models(&[status], &[]), "tiny@w4 on no device; 0 installed, loaded on request");
    }
}
