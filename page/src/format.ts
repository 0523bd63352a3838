// Numbers and devices as text.

/** Returns bytes in binary units: `1.5 GiB`. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** Returns a count with separators: `12,345`. */
export function count(value: number): string {
  return value.toLocaleString("en");
}

/** Returns a share: `86.2 %`. A share that is not whole is never shown as 0 or 100 %. */
export function percent(share: number): string {
  if (share <= 0) return "0 %";
  if (share >= 1) return "100 %";
  return `${Math.min(99.9, Math.max(0.1, share * 100)).toFixed(1)} %`;
}

/** Returns a time: `236 ms`, `1.4 s`. */
export function duration(milliseconds: number): string {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

/** Returns a rate of tokens: `65 tokens/s`. */
export function rate(perSecond: number): string {
  return `${perSecond >= 10 ? count(Math.round(perSecond)) : perSecond.toFixed(1)} tokens/s`;
}

/** Kind of hardware behind a device. */
export type Kind = "npu" | "gpu" | "cpu" | "emulation";

const NAMES: Record<string, [Kind, string]> = {
  qnn: ["npu", "Snapdragon NPU"],
  openvino: ["npu", "Intel NPU"],
  vitisai: ["npu", "AMD NPU"],
  coreml: ["npu", "Apple Neural Engine"],
  directml: ["gpu", "DirectX 12 device"],
  cuda: ["gpu", "NVIDIA GPU"],
  webgpu: ["gpu", "GPU (WebGPU)"],
  cpu: ["cpu", "CPU"],
};

/** Returns the kind of a device or provider. */
export function kindOf(device: string): Kind {
  const name = device.toLowerCase();
  if (/emul|sim|openvino.*cpu/.test(name)) return "emulation";
  if (/openvino.*gpu/.test(name)) return "gpu";
  const start = Object.keys(NAMES).find((known) => name.startsWith(known));
  return start ? NAMES[start]![0] : "cpu";
}

/** Returns the name of a device for people. */
export function deviceName(device: string): string {
  return NAMES[device]?.[1] ?? device;
}
