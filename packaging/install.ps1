# Installs a release of Narthex for one user: the program and ONNX Runtime's library into $env:NARTHEX_PREFIX, by default
# %LOCALAPPDATA%\Programs\narthex. Removing that folder removes the installation.
#
#   $env:NARTHEX_RELEASE = "https://…"; irm "$env:NARTHEX_RELEASE/install.ps1" | iex
$ErrorActionPreference = "Stop"
Set-StrictMode -Version Latest

$release = $env:NARTHEX_RELEASE
if (-not $release) { throw "set NARTHEX_RELEASE to the address or folder of a release" }
$prefix = $env:NARTHEX_PREFIX
if (-not $prefix) { $prefix = Join-Path $env:LOCALAPPDATA "Programs\narthex" }

$cpu = switch ($env:PROCESSOR_ARCHITECTURE) {
    "AMD64" { "x64" }
    "ARM64" { "arm64" }
    default { throw "there is no release for $env:PROCESSOR_ARCHITECTURE" }
}
$archive = "narthex-windows-$cpu.zip"
$folder = Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName())
New-Item -ItemType Directory -Path $folder | Out-Null
try {
    foreach ($name in $archive, "SHA256SUMS") {
        $target = Join-Path $folder $name
        if ($release -match "^https?://") { Invoke-WebRequest -UseBasicParsing -Uri "$release/$name" -OutFile $target }
        else { Copy-Item (Join-Path $release $name) $target }
    }
    $line = Get-Content (Join-Path $folder "SHA256SUMS") | Where-Object { $_ -match "[ *]$([regex]::Escape($archive))$" }
    if (-not $line) { throw "SHA256SUMS has no digest of $archive" }
    $expected = ($line -split "\s+")[0]
    $found = (Get-FileHash -Algorithm SHA256 (Join-Path $folder $archive)).Hash.ToLowerInvariant()
    if ($expected -ne $found) { throw "$archive is damaged: expected SHA-256 $expected, found $found" }
    Expand-Archive -Path (Join-Path $folder $archive) -DestinationPath $folder
    New-Item -ItemType Directory -Force -Path $prefix | Out-Null
    Copy-Item -Recurse -Force (Join-Path $folder "narthex\*") $prefix
    $bin = Join-Path $prefix "bin"
    $version = & (Join-Path $bin "narthex.exe") --version
    Write-Output "installed $version in $bin"
    $path = [Environment]::GetEnvironmentVariable("Path", "User")
    if (($path -split ";") -notcontains $bin) {
        [Environment]::SetEnvironmentVariable("Path", "$bin;$path", "User")
        Write-Output "added $bin to the user's PATH; open a new terminal"
    }
} finally {
    Remove-Item -Recurse -Force $folder
}
