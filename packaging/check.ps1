# Installs the archive that build.ps1 made and the wheel, each into a fresh prefix, and asks a model a question through it.
# The models are in $env:NARTHEX_MODELS. See check.sh.
#
#   $env:NARTHEX_MODELS = "target/store"; packaging/check.ps1 target/package
param([string]$Folder)
$ErrorActionPreference = "Stop"
Set-StrictMode -Version Latest

$out = (Resolve-Path $Folder).Path
$models = (Resolve-Path $env:NARTHEX_MODELS).Path
$work = (New-Item -ItemType Directory -Path (Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName()))).FullName

# The answer must be right, and no runtime may be downloaded.
function Test-Answer([string]$Name, [string]$Program) {
    $store = New-Item -ItemType Directory -Path (Join-Path $work "store-$Name")
    Copy-Item -Recurse (Join-Path $models "packages") $store
    $env:NARTHEX_HOME = $store.FullName
    $env:NARTHEX_OFFLINE = "1"
    try { $answer = & $Program run --quiet smollm2:135m "What is the capital of France?" }
    finally { Remove-Item Env:NARTHEX_HOME, Env:NARTHEX_OFFLINE }
    if ("$answer" -notmatch "Paris") { throw "$Name answered: $answer" }
    if (Test-Path (Join-Path $store "runtimes")) { throw "$Name installed a runtime" }
    Write-Output "$Name answered: $answer"
}

try {
    $prefix = Join-Path $work "prefix"
    $env:NARTHEX_RELEASE = $out
    $env:NARTHEX_PREFIX = $prefix
    & (Join-Path $PSScriptRoot "install.ps1")
    foreach ($file in "LICENSE", "onnxruntime-LICENSE", "onnxruntime-ThirdPartyNotices.txt") {
        if (-not (Test-Path (Join-Path $prefix "share/doc/narthex/$file"))) { throw "install.ps1 installed no $file" }
    }
    Test-Answer "install.ps1" (Join-Path $prefix "bin/narthex.exe")

    foreach ($wheel in Get-ChildItem $out -Filter *.whl) {
        python -m venv (Join-Path $work "venv")
        if ($LASTEXITCODE -ne 0) { throw "the virtual environment cannot be made" }
        & (Join-Path $work "venv/Scripts/pip.exe") install --quiet --disable-pip-version-check $wheel.FullName
        if ($LASTEXITCODE -ne 0) { throw "$wheel cannot be installed" }
        Test-Answer "wheel" (Join-Path $work "venv/Scripts/narthex.exe")
    }
} finally {
    Remove-Item -Recurse -Force $work
}
