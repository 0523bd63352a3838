//! Devices of recorded machines: the device that each named order selects, and the message of every refusal.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::BTreeMap, fmt::Write, path::PathBuf};

use narthex_device::{
    ep::{Device, Facts, probe},
    inventory::{Accelerator, AcceleratorKind, Driver},
};
use narthex_spec::{DeviceName, DeviceOrder, Ep, target::QnnChip};

const ORDERS: [&str; 6] = ["auto", "snapdragon", "ryzen-ai", "core-ultra", "apple", "nvidia"];

/// A recorded machine: title; system, architecture and processor; kinds and drivers of its accelerators, which on
/// Windows are only in the registry.
type Machine = (&'static str, [&'static str; 3], &'static [(AcceleratorKind, &'static str)]);

const NPU: AcceleratorKind = AcceleratorKind::Npu;
const GPU: AcceleratorKind = AcceleratorKind::Gpu;

const MACHINES: [Machine; 12] = [
    (
        "Snapdragon X laptop, Windows",
        ["windows", "aarch64", "Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU"],
        &[],
    ),
    (
        "Snapdragon X laptop, Windows without a registry to read",
        ["windows", "aarch64", "ARMv8 (64-bit) Family 8 Model 1 Revision 201, Qualcomm Technologies Inc"],
        &[],
    ),
    (
        "Snapdragon X laptop, Linux",
        ["linux", "aarch64", "X1E78100, lenovo,thinkpad-t14s, qcom,x1e78100, qcom,x1e80100"],
        &[(NPU, "fastrpc"), (GPU, "msm_dpu")],
    ),
    ("Ryzen AI 300, Windows", ["windows", "x86_64", "AMD Ryzen AI 9 HX 370 w/ Radeon 890M"], &[]),
    (
        "Ryzen AI 300, Linux",
        ["linux", "x86_64", "AMD Ryzen AI 9 HX 370 w/ Radeon 890M"],
        &[(NPU, "amdxdna"), (GPU, "amdgpu")],
    ),
    ("Core Ultra, Windows", ["windows", "x86_64", "Intel(R) Core(TM) Ultra 7 155H"], &[]),
    (
        "Ryzen 8040 with a graphics card, Windows",
        ["windows", "x86_64", "AMD Ryzen 7 8845HS w/ Radeon 780M Graphics"],
        &[
            (NPU, "NPU Compute Accelerator Device 32.0.203.280"),
            (GPU, "NVIDIA GeForce RTX 4060 32.0.15.7283"),
        ],
    ),
    (
        "Intel N100, Windows",
        ["windows", "x86_64", "Intel(R) N100"],
        &[(GPU, "Intel(R) UHD Graphics 32.0.101.6078")],
    ),
    (
        "Core Ultra, Linux",
        ["linux", "x86_64", "Intel(R) Core(TM) Ultra 7 155H"],
        &[(NPU, "intel_vpu"), (GPU, "i915")],
    ),
    ("MacBook M3", ["macos", "aarch64", "aarch64"], &[]),
    (
        "NVIDIA desktop, Linux",
        ["linux", "x86_64", "AMD Ryzen 9 7950X 16-Core Processor"],
        &[(GPU, "nvidia"), (GPU, "amdgpu")],
    ),
    ("plain server, Linux", ["linux", "x86_64", "Intel(R) Xeon(R) Gold 6430"], &[]),
];

/// Converts a record to facts, with these libraries.
fn facts((_, [os, arch, processor], accelerators): &Machine, libraries: &[Ep]) -> Facts {
    let accelerator = |&(kind, driver): &(AcceleratorKind, &str)| Accelerator {
        kind,
        driver: driver.to_owned(),
        text: driver.to_owned(),
        memory: None,
    };
    let driver = |&(kind, text): &(AcceleratorKind, &str)| Driver { kind, text: text.to_owned() };
    let (listed, registered) =
        if *os == "windows" { (&[][..], *accelerators) } else { (*accelerators, &[][..]) };
    Facts {
        os: (*os).to_owned(),
        arch: (*arch).to_owned(),
        processor: (*processor).to_owned(),
        accelerators: listed.iter().map(accelerator).collect(),
        drivers: registered.iter().map(driver).collect(),
        libraries: libraries.iter().map(|&ep| (ep, PathBuf::from(format!("/lib/{ep}")))).collect(),
        unloadable: BTreeMap::new(),
    }
}

/// Returns the device that each order selects on a machine, and for every device whether it is available, or its
/// refusal.
fn tell(machine: &Machine, libraries: &[Ep]) -> String {
    let facts = facts(machine, libraries);
    let installed = if libraries.is_empty() { "no runtime" } else { "every runtime" };
    let mut out = format!("{}, {installed} installed\n", machine.0);
    for order in ORDERS {
        let order_of: DeviceOrder = order.parse().unwrap();
        let taken = order_of.devices().iter().find(|&&name| probe(name, &facts).is_ok());
        writeln!(out, "  {order}: {}", taken.expect("the CPU is always there")).unwrap();
    }
    for name in DeviceName::ALL {
        match probe(name, &facts) {
            Ok(device) => {
                // Emulation uses the NPU's own plugin with a given chip.
                assert_eq!(device.ep(), name.ep());
                writeln!(out, "  + {name}").unwrap();
            }
            Err(refusal) => {
                let fix = refusal.fix.map(|fix| format!(" -> {fix}")).unwrap_or_default();
                writeln!(out, "  - {name} [{:?}]: {}{fix}", refusal.cause, refusal.reason).unwrap();
            }
        }
    }
    out
}

#[test]
fn every_machine_selects_its_devices_with_reasons() {
    let mut all = String::new();
    for machine in &MACHINES {
        for libraries in [&[][..], &Ep::ALL[..]] {
            all += &tell(machine, libraries);
            all.push('\n');
        }
    }
    insta::assert_snapshot!(all);
}

#[test]
fn a_snapdragon_is_known_by_its_name() {
    let chips = |machine: &Machine| match probe(DeviceName::Qnn, &facts(machine, &[Ep::Qnn])) {
        Ok(Device::Qnn(options)) => options.chips,
        other => panic!("{}: {other:?}", machine.0),
    };
    let found: Vec<Vec<QnnChip>> = MACHINES[..3].iter().map(chips).collect();
    // If the name is unknown, the driver chooses the chip.
    assert_eq!(found, [vec![QnnChip::XElite], vec![], vec![QnnChip::XElite]]);
}

#[test]
fn a_server_with_qualcomms_plugin_emulates_when_asked_and_not_otherwise() {
    let server = MACHINES.last().unwrap();
    let facts = facts(server, &[Ep::Qnn]);
    assert!(probe(DeviceName::QnnEmulation, &facts).is_ok());
    let taken: BTreeMap<&str, DeviceName> = ORDERS
        .into_iter()
        .map(|order| {
            let devices: DeviceOrder = order.parse().unwrap();
            (order, *devices.devices().iter().find(|&&name| probe(name, &facts).is_ok()).unwrap())
        })
        .collect();
    assert!(taken.values().all(|&name| name == DeviceName::Cpu), "{taken:?}");
}
