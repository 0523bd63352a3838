# Packages a built program for Windows: an archive and the npm package's part. See build.sh.
param([string]$Program, [string]$Platform, [string]$Folder)
$ErrorActionPreference = "Stop"
Set-StrictMode -Version Latest

$root = Split-Path -Parent $PSScriptRoot
$out = New-Item -ItemType Directory -Force -Path $Folder
$work = New-Item -ItemType Directory -Path (Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName()))
try {
    $env:NARTHEX_HOME = Join-Path $work "store"
    $library = & $Program runtime install cpu
    if ($LASTEXITCODE -ne 0) { throw "ONNX Runtime cannot be installed" }
    $package = Split-Path -Parent (Split-Path -Parent $library)
    $tree = Join-Path $work "narthex"
    foreach ($name in "bin", "lib/narthex", "share/doc/narthex") {
        New-Item -ItemType Directory -Force -Path (Join-Path $tree $name) | Out-Null
    }
    Copy-Item $Program (Join-Path $tree "bin/narthex.exe")
    Copy-Item (Join-Path (Split-Path -Parent $library) "*.dll") (Join-Path $tree "lib/narthex")
    Copy-Item (Join-Path $root "LICENSE") (Join-Path $tree "share/doc/narthex/LICENSE")
    foreach ($name in "LICENSE", "ThirdPartyNotices.txt") {
        Copy-Item (Join-Path $package $name) (Join-Path $tree "share/doc/narthex/onnxruntime-$name")
    }
    Compress-Archive -Path $tree -DestinationPath (Join-Path $out "narthex-$Platform.zip")
    $platforms = New-Item -ItemType Directory -Path (Join-Path $work "platforms")
    Copy-Item -Recurse $tree (Join-Path $platforms ($Platform -replace "^windows-", "win32-"))
    tar -czf (Join-Path $out "npm-$Platform.tar.gz") -C $work platforms
    if ($LASTEXITCODE -ne 0) { throw "the archive for npm cannot be written" }
    Get-ChildItem $out -File | Where-Object Name -ne "SHA256SUMS" | ForEach-Object {
        "$((Get-FileHash -Algorithm SHA256 $_.FullName).Hash.ToLowerInvariant())  $($_.Name)"
    } | Set-Content (Join-Path $out "SHA256SUMS")
} finally {
    Remove-Item -Recurse -Force $work
}
