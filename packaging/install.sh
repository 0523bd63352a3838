#!/bin/sh
# Installs a release of Narthex for one user: the program into $NARTHEX_PREFIX/bin, ONNX Runtime's library into
# $NARTHEX_PREFIX/lib/narthex, licences into $NARTHEX_PREFIX/share/doc/narthex, and manual pages into
# $NARTHEX_PREFIX/share/man/man1. Removing these removes the installation.
#
#   curl -fsSL "$URL/install.sh" | NARTHEX_RELEASE="$URL" sh
#
# NARTHEX_RELEASE  address or folder of the release's files (required)
# NARTHEX_PREFIX   installation folder [default: ~/.local]
set -eu

fail() { echo "error: $1" >&2; exit 1; }

release=${NARTHEX_RELEASE:-}
[ -n "$release" ] || fail "set NARTHEX_RELEASE to the address or folder of a release"
prefix=${NARTHEX_PREFIX:-$HOME/.local}

case "$(uname -s)" in
  Linux) os=linux ;;
  Darwin) os=macos ;;
  *) fail "there is no release for $(uname -s); on Windows use install.ps1" ;;
esac
case "$(uname -m)" in
  x86_64 | amd64) cpu=x64 ;;
  aarch64 | arm64) cpu=arm64 ;;
  *) fail "there is no release for $(uname -m)" ;;
esac
archive="narthex-$os-$cpu.tar.gz"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
get() {
  case "$release" in
    http://* | https://*) curl -fsSL --retry 3 -o "$folder/$1" "$release/$1" || fail "$release/$1 cannot be downloaded" ;;
    *) cp "$release/$1" "$folder/$1" || fail "$release/$1 cannot be read" ;;
  esac
}
get "$archive"
get SHA256SUMS

expected=$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1 }' "$folder/SHA256SUMS")
[ -n "$expected" ] || fail "SHA256SUMS has no digest of $archive"
if command -v sha256sum >/dev/null; then
  found=$(sha256sum "$folder/$archive" | cut -d ' ' -f 1)
else
  found=$(shasum -a 256 "$folder/$archive" | cut -d ' ' -f 1)
fi
[ "$expected" = "$found" ] || fail "$archive is damaged: expected SHA-256 $expected, found $found"

tar -xzf "$folder/$archive" -C "$folder"
mkdir -p "$prefix/bin" "$prefix/lib/narthex" "$prefix/share/doc/narthex" "$prefix/share/man/man1"
cp "$folder"/narthex/lib/narthex/* "$prefix/lib/narthex/"
cp "$folder"/narthex/share/doc/narthex/* "$prefix/share/doc/narthex/"
cp "$folder"/narthex/share/man/man1/*.1 "$prefix/share/man/man1/"
# A running program keeps its old file.
cp "$folder/narthex/bin/narthex" "$prefix/bin/narthex.new"
chmod 755 "$prefix/bin/narthex.new"
mv "$prefix/bin/narthex.new" "$prefix/bin/narthex"
echo "installed $("$prefix/bin/narthex" --version) in $prefix/bin"
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "hint: add $prefix/bin to PATH" ;;
esac
