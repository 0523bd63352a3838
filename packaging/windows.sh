#!/bin/sh
# Packages a program that was built for Windows, on Linux: an archive, the npm package's part, an installer (.msi) and
# the manifest for winget.
#
#   packaging/windows.sh narthex.exe onnxruntime-…-win_amd64.whl windows-x64 target/package
#
# The packages carry the library of the wheel with its licences. The installer needs wixl and msitools. The manifest
# names the address in NARTHEX_RELEASE, from which the installer can be downloaded. NARTHEX_VERSION overrides the version.
set -eu

fail() { echo "error: $1" >&2; exit 1; }

[ $# -eq 4 ] || { echo "usage: windows.sh PROGRAM WHEEL PLATFORM FOLDER" >&2; exit 2; }
program=$(realpath "$1") wheel=$(realpath "$2") platform=$3 out=$4
case "$platform" in
  windows-x64) cpu=x64 template=x64 ;;
  windows-arm64) cpu=arm64 template=Arm64 ;;
  *) fail "expected windows-x64 or windows-arm64, found $platform" ;;
esac
cd "$(dirname "$0")/.."
root=$PWD
version=${NARTHEX_VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

tree="$work/narthex"
mkdir -p "$tree/bin" "$tree/lib/narthex" "$tree/share/doc/narthex"
cp "$program" "$tree/bin/narthex.exe"
cp LICENSE "$tree/share/doc/narthex/LICENSE"
python3 -m zipfile -e "$wheel" "$work/wheel"
cp "$work/wheel/onnxruntime/capi/"onnxruntime*.dll "$tree/lib/narthex/"
for file in LICENSE ThirdPartyNotices.txt; do
  cp "$work/wheel/onnxruntime/$file" "$tree/share/doc/narthex/onnxruntime-$file"
done

cd "$work"
rm -f "$out/narthex-$platform.zip"
python3 -m zipfile -c "$out/narthex-$platform.zip" narthex
npm_platform=$(echo "$platform" | sed 's/^windows-/win32-/')
mkdir platforms
cp -R "$tree" "platforms/$npm_platform"
tar -czf "$out/npm-$platform.tar.gz" platforms

# Returns an identifier that depends on the text alone.
identifier() {
  python3 -c "import sys, uuid; print(str(uuid.uuid5(uuid.NAMESPACE_OID, sys.argv[1])).upper())" "$1"
}

if command -v wixl >/dev/null && command -v msibuild >/dev/null; then
  product=$(identifier "narthex $version $platform")
  installer="$out/narthex-$platform.msi"
  rm -f "$installer"
  cp "$root/packaging/windows/"*.idt "$root/packaging/windows/narthex.wxs" .
  wixl --arch x64 -D "Version=$version" -D "ProductCode=$product" -o "$installer" narthex.wxs
  msibuild "$installer" -i Environment.idt
  msibuild "$installer" -i CustomAction.idt
  # wixl lists the standard actions for its own tables only.
  while IFS='|' read -r action condition sequence; do
    msibuild "$installer" -q "INSERT INTO \`InstallExecuteSequence\` (\`Action\`, \`Condition\`, \`Sequence\`)
      VALUES ('$action', '$condition', $sequence)"
  done <"$root/packaging/windows/actions.txt"
  msibuild "$installer" -s "Narthex $version" "The Narthex developers" "$template;1033" \
    "{$(identifier "narthex package $version $platform")}"

  digest=$(sha256sum "$installer" | cut -d ' ' -f 1)
  manifest="$out/winget-$platform"
  mkdir -p "$manifest"
  for file in "$root/packaging/windows/winget/"*.yaml; do
    sed -e "s|@VERSION@|$version|g" -e "s|@CPU@|$cpu|g" -e "s|@PRODUCT@|{$product}|g" \
      -e "s|@SHA256@|$(echo "$digest" | tr a-f A-F)|g" \
      -e "s|@RELEASE@|${NARTHEX_RELEASE:-https://release.invalid}|g" "$file" >"$manifest/$(basename "$file")"
  done
else
  echo "note: no installer was made, because wixl and msitools are missing; on Debian: apt-get install wixl msitools" >&2
fi

cd "$out"
find . -type f ! -name SHA256SUMS | sed 's|^\./||' | sort | xargs -d '\n' sha256sum >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" SHA256SUMS
