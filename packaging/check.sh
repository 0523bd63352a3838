#!/bin/sh
# Installs the packages that build.sh made, each into a fresh prefix, and asks a model a question through it. Each package
# must carry its licences. Prints a row of a Markdown table for each. The models are in NARTHEX_MODELS, a store whose runtimes are not used.
#
#   NARTHEX_MODELS=target/narthex-home packaging/check.sh target/package linux-x64
set -eu

[ $# -eq 2 ] || { echo "usage: check.sh FOLDER PLATFORM" >&2; exit 2; }
out=$(cd "$1" && pwd) platform=$2
models=$(cd "${NARTHEX_MODELS:?set it to a store with smollm2:135m}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# ask NAME SECONDS-OF-INSTALLATION PROGRAM: the answer must be right, and no runtime may be downloaded.
ask() {
  home="$work/home-$1"
  mkdir -p "$home"
  cp -R "$models/packages" "$home/packages"
  began=$(date +%s)
  answer=$(env -u ORT_DYLIB_PATH -u VIRTUAL_ENV NARTHEX_HOME="$home" NARTHEX_OFFLINE=1 ORT_DISABLE_TELEMETRY=1 \
    "$3" run --quiet smollm2:135m "What is the capital of France?")
  took=$(($(date +%s) - began))
  case "$answer" in
    *Paris*) echo "| $1 | $2 s | $took s | $answer |" ;;
    *) echo "error: $1 answered: $answer" >&2; exit 1 ;;
  esac
  [ ! -e "$home/runtimes" ] || { echo "error: $1 installed a runtime" >&2; exit 1; }
}

# licences NAME PREFIX FILES: each file must be in the documentation of an installation.
licences() {
  name=$1 doc="$2/share/doc/narthex"
  shift 2
  for file in "$@"; do
    [ -s "$doc/$file" ] || { echo "error: $name has no $doc/$file" >&2; exit 1; }
  done
}
notices="onnxruntime-LICENSE onnxruntime-ThirdPartyNotices.txt"

echo "| Installation | Installed in | First answer after | Answer |"
echo "|---|---:|---:|---|"

began=$(date +%s)
NARTHEX_RELEASE="$out" NARTHEX_PREFIX="$work/prefix" sh "$here/install.sh" >/dev/null
licences install.sh "$work/prefix" LICENSE $notices
ask install.sh $(($(date +%s) - began)) "$work/prefix/bin/narthex"

if command -v npm >/dev/null; then
  began=$(date +%s)
  mkdir "$work/npm"
  cp -R "$here/npm/." "$work/npm/"
  tar -xzf "$out/npm-$platform.tar.gz" -C "$work/npm"
  (cd "$work/npm" && npm pack --silent --pack-destination "$work" >/dev/null)
  npm install --silent --no-audit --no-fund --offline --prefix "$work/npm-prefix" "$work"/narthex-*.tgz >/dev/null
  licences npm "$work/npm-prefix/node_modules/narthex/platforms/$(echo "$platform" | sed 's/^macos-/darwin-/')" LICENSE $notices
  ask npm $(($(date +%s) - began)) "$work/npm-prefix/node_modules/.bin/narthex"
fi

for deb in "$out"/*.deb; do
  [ -e "$deb" ] || continue
  began=$(date +%s)
  dpkg-deb -x "$deb" "$work/root"
  licences deb "$work/root/usr" copyright $notices
  grep -q '^ExecStart=/usr/bin/narthex serve' "$work/root/usr/lib/systemd/system/narthex.service"
  homepage=$(cd "$here" && sh homepage.sh)
  [ "$(dpkg-deb -f "$deb" Homepage)" = "$homepage" ] ||
    { echo "error: $deb does not have the homepage '$homepage'" >&2; exit 1; }
  ask deb $(($(date +%s) - began)) "$work/root/usr/bin/narthex"
done

for wheel in "$out"/*.whl; do
  [ -e "$wheel" ] || continue
  # The library and its licences come with the package onnxruntime.
  python3 -m zipfile -l "$wheel" | grep -q 'dist-info/licenses/LICENSE' ||
    { echo "error: $wheel has no LICENSE" >&2; exit 1; }
  began=$(date +%s)
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
  ask wheel $(($(date +%s) - began)) "$work/venv/bin/narthex"
done
