#!/bin/sh
# Packages a built program for Linux or macOS: an archive, the npm package's part, and on Debian a .deb.
#
#   packaging/build.sh target/release/narthex linux-x64 target/package
#
# The program installs ONNX Runtime's pinned library into a store of its own, and the packages carry it with its licences.
set -eu

fail() { echo "error: $1" >&2; exit 1; }

[ $# -eq 3 ] || { echo "usage: build.sh PROGRAM PLATFORM FOLDER" >&2; exit 2; }
program=$1 platform=$2 out=$3
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

library=$(NARTHEX_HOME="$work/store" "$program" runtime install cpu)
package=$(dirname "$(dirname "$library")")
tree="$work/narthex"
mkdir -p "$tree/bin" "$tree/lib/narthex" "$tree/share/doc/narthex"
cp "$program" "$tree/bin/narthex"
strip "$tree/bin/narthex" 2>/dev/null || true
cp "$library" "$tree/lib/narthex/"
"$program" man "$tree/share/man/man1" >/dev/null
cp LICENSE "$tree/share/doc/narthex/LICENSE"
for file in LICENSE ThirdPartyNotices.txt; do
  cp "$package/$file" "$tree/share/doc/narthex/onnxruntime-$file"
done

tar -czf "$out/narthex-$platform.tar.gz" -C "$work" narthex

# npm's names of systems differ.
npm_platform=$(echo "$platform" | sed 's/^macos-/darwin-/')
mkdir -p "$work/platforms"
cp -R "$tree" "$work/platforms/$npm_platform"
tar -czf "$out/npm-$platform.tar.gz" -C "$work" platforms

# Prints the highest version of glibc whose symbols the program or the library needs.
glibc() {
  command -v readelf >/dev/null || fail "readelf was not found; install binutils"
  readelf -W --version-info "$tree/bin/narthex" "$tree"/lib/narthex/* | grep -o 'GLIBC_[0-9][0-9.]*' |
    sed 's/GLIBC_//' | sort -V | tail -n 1
}

case "$platform" in linux-x64) arch=amd64 ;; linux-arm64) arch=arm64 ;; *) arch= ;; esac
if [ -n "$arch" ] && command -v dpkg-deb >/dev/null; then
  libc=$(glibc)
  [ -n "$libc" ] || fail "$program names no version of glibc"
  root="$work/deb"
  mkdir -p "$root/DEBIAN" "$root/usr" "$root/usr/share/bash-completion/completions"
  cp -R "$tree/." "$root/usr/"
  "$program" completions bash >"$root/usr/share/bash-completion/completions/narthex"
  gzip -9n "$root/usr/share/man/man1/"*.1
  # The unit is not enabled. The groups of the building machine may not exist on another one.
  mkdir -p "$root/usr/lib/systemd/system"
  env -u NARTHEX_HOME "$program" service install --system --print |
    sed -e 's|^ExecStart=[^ ]*|ExecStart=/usr/bin/narthex|' -e '/^SupplementaryGroups=/d' \
      >"$root/usr/lib/systemd/system/narthex.service"
  mv "$root/usr/share/doc/narthex/LICENSE" "$root/usr/share/doc/narthex/copyright"
  size=$(du -sk "$root/usr" | cut -f 1)
  cat >"$root/DEBIAN/control" <<CONTROL
Package: narthex
Version: $version
Architecture: $arch
Maintainer: The Narthex developers <narthex@localhost>
Installed-Size: $size
Depends: libc6 (>= $libc), libgcc-s1, libstdc++6
Recommends: python3-pip
Section: science
Priority: optional
Description: language models on the NPU, GPU and CPU behind the OpenAI API
 Narthex compiles language models and runs them on the devices of one machine.
 Models and further runtimes are fetched through pip.
CONTROL
  homepage=$(sh packaging/homepage.sh)
  [ -z "$homepage" ] || sed -i "/^Section:/i Homepage: $homepage" "$root/DEBIAN/control"
  chmod -R go-w "$root"
  dpkg-deb --root-owner-group -Zgzip --build "$root" "$out/narthex_${version}_$arch.deb" >/dev/null
fi

# macOS has shasum instead of sha256sum.
digest() { if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi; }
cd "$out"
for file in *; do
  [ ! -f "$file" ] || [ "$file" = SHA256SUMS ] || digest "$file"
done >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" SHA256SUMS
