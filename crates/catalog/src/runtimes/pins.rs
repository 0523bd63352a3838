//! The pinned wheel of each runtime for each platform, and the members to unpack.
//!
//! Wheels are chosen by platform tag, so that pip fetches the same file on every machine. The digests are those of the
//! files as published.

use narthex_spec::{Ep, Sha256};

use crate::{error::Error, platform::Platform};

/// One wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// The runtime.
    pub package: &'static RuntimePackage,
    /// The platform.
    pub platform: Platform,
    /// The platform tag that pip is given.
    pub tag: &'static str,
    /// The wheel's size.
    pub bytes: u64,
    /// The wheel's SHA-256, in hexadecimal.
    pub digest: &'static str,
    /// The library to load, by its name in the wheel.
    pub library: &'static str,
}

/// File names whose libraries belong to Python, not to the runtime.
const PYTHONS_OWN: &[&str] = &["onnxruntime_pybind11_state", "libDlModelToolsPy", "DlModelToolsPy"];

impl Pin {
    /// The digest as a value.
    pub(super) fn sha256(&self) -> Result<Sha256, Error> {
        self.digest.parse().map_err(|_| Error::BadEntry {
            file: "runtimes/pins.rs",
            reason: format!("{} {} has a malformed digest", self.package.name, self.package.version),
        })
    }

    /// Returns whether a member is unpacked: libraries beside or near the one to load, and licences.
    pub(super) fn takes(&self, member: &str) -> bool {
        let file = member.rsplit('/').next().unwrap_or(member);
        let lower = file.to_ascii_lowercase();
        if ["license", "thirdpartynotices", "privacy"].iter().any(|word| lower.starts_with(word)) {
            return true;
        }
        if lower.ends_with("_license.pdf") {
            return true;
        }
        let near = self.folders().any(|folder| member.starts_with(&folder));
        let library = [".so", ".dll", ".dylib", ".cat"].iter().any(|ending| lower.ends_with(ending))
            || lower.contains(".so.")
            || file == "cache.json";
        near && library && !PYTHONS_OWN.iter().any(|name| file.starts_with(name))
    }

    /// The library's own folder, and the one in which repaired Linux wheels keep what they bring along.
    fn folders(&self) -> impl Iterator<Item = String> {
        let own = self.library.rsplit_once('/').map_or("", |(folder, _)| folder);
        let top = self.library.split('/').next().unwrap_or("");
        [format!("{own}/"), format!("{top}.libs/")].into_iter()
    }
}

/// A runtime as its publisher packages it, in the same version for every platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimePackage {
    /// The provider that it brings.
    pub ep: Ep,
    /// Name of the package.
    pub name: &'static str,
    /// PinnedWheel version.
    pub version: &'static str,
    /// Requirements of the machine beside the runtime.
    pub needs: Option<&'static str>,
    /// Reason why some platforms have no wheel.
    platforms: &'static str,
}

impl RuntimePackage {
    /// Name of its folder in the store.
    pub(super) fn folder_name(&self) -> String {
        format!("{}-{}", self.ep, self.version)
    }
}

/// Finds the wheel of a provider's runtime for a platform, or the reason why it is missing.
pub(super) fn find(ep: Ep, platform: Platform) -> Result<&'static Pin, &'static str> {
    let package = super::package(ep).ok_or("it comes with other software")?;
    let found = PINS.iter().find(|pin| pin.package.ep == ep && pin.platform == platform);
    found.ok_or(package.platforms)
}

const fn pin(
    package: &'static RuntimePackage,
    platform: Platform,
    tag: &'static str,
    bytes: u64,
    digest: &'static str,
    library: &'static str,
) -> Pin {
    Pin { package, platform, tag, bytes, digest, library }
}

/// ONNX Runtime itself, with its CPU kernels.
pub const ONNX_RUNTIME: RuntimePackage = RuntimePackage {
    ep: Ep::Cpu,
    name: "onnxruntime",
    version: "1.31.1",
    needs: None,
    platforms: "no wheel is published for it",
};

const QNN: RuntimePackage = RuntimePackage {
    ep: Ep::Qnn,
    name: "onnxruntime-qnn",
    version: "2.7.0",
    needs: Some("Qualcomm's NPU driver to run on an NPU; compiling for one needs nothing more"),
    platforms: "its wheels are for Linux and Windows only",
};

const OPENVINO: RuntimePackage = RuntimePackage {
    ep: Ep::OpenVino,
    name: "onnxruntime-ep-openvino",
    version: "1.8.1",
    needs: Some("Intel's NPU or GPU driver to run on those devices"),
    platforms: "its wheels are for Linux x86-64 and Windows x64 only",
};

const WEBGPU: RuntimePackage = RuntimePackage {
    ep: Ep::WebGpu,
    name: "onnxruntime-ep-webgpu",
    version: "0.4.0",
    needs: None,
    platforms: "no wheel is published for it",
};

const DIRECTML: RuntimePackage = RuntimePackage {
    ep: Ep::DirectMl,
    name: "onnxruntime-directml",
    version: "1.24.4",
    needs: Some("Windows 10 version 1903 or later with a DirectX 12 driver"),
    platforms: "its wheels are for Windows x64 only",
};

const CUDA: RuntimePackage = RuntimePackage {
    ep: Ep::Cuda,
    name: "onnxruntime-gpu",
    version: "1.31.1",
    needs: Some("an NVIDIA driver, CUDA 13 and cuDNN 9, which this wheel does not contain"),
    platforms: "its wheels are for Linux x86-64 and Windows x64 only",
};

/// Every runtime.
pub(super) const PACKAGES: [&RuntimePackage; 6] = [&ONNX_RUNTIME, &QNN, &OPENVINO, &WEBGPU, &DIRECTML, &CUDA];

const LINUX_CORE: &str = "onnxruntime/capi/libonnxruntime.so.1.31.1";
const WINDOWS_CORE: &str = "onnxruntime/capi/onnxruntime.dll";

/// Every pinned wheel.
pub(super) const PINS: &[Pin] = &[
    pin(
        &ONNX_RUNTIME,
        Platform::LinuxX64,
        "manylinux_2_28_x86_64",
        23_760_988,
        "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
        LINUX_CORE,
    ),
    pin(
        &ONNX_RUNTIME,
        Platform::LinuxArm64,
        "manylinux_2_28_aarch64",
        21_420_803,
        "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
        LINUX_CORE,
    ),
    pin(
        &ONNX_RUNTIME,
        Platform::WindowsX64,
        "win_amd64",
        14_888_466,
        "ae8a9a351efda685cc59a66226cdefaa37a126c1d66872ca23a2de9425326130",
        WINDOWS_CORE,
    ),
    pin(
        &ONNX_RUNTIME,
        Platform::WindowsArm64,
        "win_arm64",
        14_740_724,
        "fe8b9ac1ae8e894e12c47ee82e4f6dfc1835768133687257866469fda80d0bf1",
        WINDOWS_CORE,
    ),
    pin(
        &ONNX_RUNTIME,
        Platform::MacArm64,
        "macosx_14_0_arm64",
        20_882_125,
        "96dd2564b10ea7153ad9c207e7cd8e5917cb3ba521e0e0a62ac03486fdc8d56c",
        "onnxruntime/capi/libonnxruntime.1.31.1.dylib",
    ),
    pin(
        &QNN,
        Platform::LinuxX64,
        "manylinux_2_35_x86_64",
        100_548_566,
        "6feb735e2910127febd9c24c1be0f541bcaf688a90028b7efe55d12aca214c13",
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
    ),
    pin(
        &QNN,
        Platform::LinuxArm64,
        "manylinux_2_34_aarch64",
        88_834_007,
        "40f6f8ab76a877b36c875122caf46189f810e52a1e7c2f75e431dfb7714168b8",
        "onnxruntime_qnn/libonnxruntime_providers_qnn.so",
    ),
    pin(
        &QNN,
        Platform::WindowsX64,
        "win_amd64",
        198_606_623,
        "83e0f18fc0233b911a78536da4d089eb66086a9d843f6046cf7a88daa4c1432c",
        "onnxruntime_qnn/libs/amd64/onnxruntime_providers_qnn.dll",
    ),
    pin(
        &QNN,
        Platform::WindowsArm64,
        "win_arm64",
        62_290_853,
        "04dff4e75d4046a29fd8d90602c0cb3d130bb3c82c58e280c600c6c234a11c84",
        "onnxruntime_qnn/onnxruntime_providers_qnn.dll",
    ),
    pin(
        &OPENVINO,
        Platform::LinuxX64,
        "manylinux_2_28_x86_64",
        52_587_628,
        "3832643158c8c187fcab6db661cde2a8c06a2b3559d95d0f2411ac0e51c5e924",
        "onnxruntime_ep_openvino/libonnxruntime_providers_openvino_plugin.so",
    ),
    pin(
        &OPENVINO,
        Platform::WindowsX64,
        "win_amd64",
        75_824_318,
        "1acd878be173b02bb8b953460f2f59b121e5f6e47ebc6aad490c0590cf6718fb",
        "onnxruntime_ep_openvino/onnxruntime_providers_openvino_plugin.dll",
    ),
    pin(
        &WEBGPU,
        Platform::LinuxX64,
        "manylinux_2_28_x86_64",
        6_892_120,
        "5d8c961eda91a88961cad1fb7621f389f006b18497d6ea9ecf96f729f066cbfb",
        "onnxruntime_ep_webgpu/libonnxruntime_providers_webgpu.so",
    ),
    pin(
        &WEBGPU,
        Platform::LinuxArm64,
        "manylinux_2_28_aarch64",
        6_096_222,
        "17f660db53b1a509c63e721ac6784a2daa1c4e91a968523ee9986505ee5b0a55",
        "onnxruntime_ep_webgpu/libonnxruntime_providers_webgpu.so",
    ),
    pin(
        &WEBGPU,
        Platform::WindowsX64,
        "win_amd64",
        13_149_847,
        "7db646669d1a2390551da675115ea125e68cb3d4d2c3a2d6e463372bf8d6ea87",
        "onnxruntime_ep_webgpu/onnxruntime_providers_webgpu.dll",
    ),
    pin(
        &WEBGPU,
        Platform::WindowsArm64,
        "win_arm64",
        14_194_630,
        "a9586f6744370776059edd794c11bca2f563258a5bd2707864aefff31d3af39f",
        "onnxruntime_ep_webgpu/onnxruntime_providers_webgpu.dll",
    ),
    pin(
        &WEBGPU,
        Platform::MacArm64,
        "macosx_14_0_arm64",
        5_200_679,
        "8d0a91d44b43d931c3068b9134aed9770f27803e353c2b58c93e1700bb68bcca",
        "onnxruntime_ep_webgpu/libonnxruntime_providers_webgpu.dylib",
    ),
    pin(
        &DIRECTML,
        Platform::WindowsX64,
        "win_amd64",
        25_111_930,
        "f2ecb68b7b7b259d2ef3112ae760149f9b5a1e7c0fbb73d539da6250a648a614",
        WINDOWS_CORE,
    ),
    pin(
        &CUDA,
        Platform::LinuxX64,
        "manylinux_2_28_x86_64",
        255_569_273,
        "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7",
        LINUX_CORE,
    ),
    pin(
        &CUDA,
        Platform::WindowsX64,
        "win_amd64",
        168_098_228,
        "2bb1e9373baba88f6415257f5b6a589d23e23c16004f7d89adf4344eada5749e",
        WINDOWS_CORE,
    ),
];
