//! Parsers of settings and records: files that Narthex writes and reads again, files and option values of the user, and
//! the environment. The first byte of an input selects the parser.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    fs,
    path::Path,
    str::FromStr,
};

use narthex_catalog::{
    fuzzing::{StoreRecord, read_hub_variables, read_store_record},
    keys::{ApiKey, KeyRole},
    resolve::ModelRef,
};
use narthex_gateway::{
    VocabSubset,
    fuzzing::{GatewayRecord, read_cards, read_kept_tokens, read_record, read_trace},
};
use narthex_mcp::toolbox::ToolFile;
use narthex_server::{
    AllowedHost, AllowedOrigin, TlsFiles,
    fuzzing::{read_host_header, read_tls_files},
};
use narthex_spec::{
    ContextFactor, DeviceName, DeviceOrder, DevicePlacement, DevicePlacements, KvCacheDtype, LayerList,
    MatFormer, ModelName, NpuOptions, PlacementChoice, Power, Scheme, Sha256, Target,
};

/// Passes an input to the parser that its first byte selects. Parsers that take a path get a file in `folder`.
///
/// # Errors
/// The parser's message if it rejects the input.
pub fn read(data: &[u8], folder: &Path) -> Result<(), String> {
    let (parser, bytes) = data.split_first().ok_or("expected the letter of a parser")?;
    match parser {
        b'R' => read_store_record(StoreRecord::Receipt, bytes),
        b'S' => read_store_record(StoreRecord::FileStates, bytes),
        b'M' => read_store_record(StoreRecord::Manifest, bytes),
        b'L' => read_store_record(StoreRecord::Listing, bytes),
        b'Q' => read_store_record(StoreRecord::IndexPage, bytes),
        b'Z' => read_store_record(StoreRecord::PipConfiguration, bytes),
        b'C' => read_record(GatewayRecord::Contexts, bytes),
        b'P' => read_record(GatewayRecord::ProviderKey, bytes),
        b'V' => read_record(GatewayRecord::Verification, bytes),
        b'K' => read_record(GatewayRecord::KvCache, bytes),
        b'D' => read_record(GatewayRecord::Measurements, bytes),
        b'W' => read_record(GatewayRecord::Server, bytes),
        b'A' => read_record(GatewayRecord::CompilerAnswer, bytes),
        b'T' => match read_trace(bytes) {
            0 => Err("the trace has no node".to_owned()),
            _ => Ok(()),
        },
        b'I' => match read_cards(bytes) {
            0 => Err("the output has no card".to_owned()),
            _ => Ok(()),
        },
        b'H' => read_host(text(bytes)?),
        b'N' => read_kept_tokens(bytes).map(drop),
        b'F' => shown(ToolFile::read(bytes)),
        b'J' => read_vocabulary(folder, "vocabulary.json", bytes),
        b'X' => read_vocabulary(folder, "vocabulary.txt", bytes),
        b'Y' => read_tls(bytes),
        b'E' => read_environment(text(bytes)?),
        b'O' => read_option(text(bytes)?),
        _ => Err("expected the letter of a parser".to_owned()),
    }
}

fn shown<T>(result: Result<T, impl Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn read_vocabulary(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = folder.join(name);
    // If an existing file is truncated and written again, some file systems write it to disk at once.
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes).expect("room for the file");
    let subset = VocabSubset::read(&path, Some(9)).map_err(|error| error.to_string())?;
    assert!(subset.slug().starts_with("vocab9-"), "{}", subset.slug());
    Ok(())
}

/// Reads a `Host` header. Its host must be the host of its own text.
fn read_host(text: &str) -> Result<(), String> {
    let host = read_host_header(text).ok_or("the header is malformed")?;
    let written = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    assert_eq!(read_host_header(&written), Some(host), "{text:?} is written as {written:?}");
    Ok(())
}

/// Reads a certificate and a key, which a zero byte separates.
fn read_tls(bytes: &[u8]) -> Result<(), String> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or("expected two files")?;
    let (certificate, key) = (bytes[..end].to_vec(), bytes[end + 1..].to_vec());
    read_tls_files(&TlsFiles { certificate, key })
}

/// Reads lines in the form `NAME=VALUE` as the environment. Each value is also read as an API key.
fn read_environment(text: &str) -> Result<(), String> {
    let variables: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    for secret in variables.values() {
        if let Ok(key) = ApiKey::from_secret("NARTHEX_API_KEY", secret, KeyRole::User) {
            let written = serde_json::to_vec(&key).expect("the key as JSON");
            assert_eq!(serde_json::from_slice::<ApiKey>(&written).ok(), Some(key));
        }
    }
    read_hub_variables(&|name| variables.get(name).map(|value| (*value).to_owned()))
}

/// Function that parses the value of an option. The error is the reason if it refuses the value.
type OptionParser = fn(&str) -> Result<(), String>;

/// Parses the value of an option as every type that an option has. An accepted value must be the value of its own text.
fn read_option(text: &str) -> Result<(), String> {
    let parsers: &[OptionParser] = &[
        again::<ModelName>,
        again::<Sha256>,
        again::<Scheme>,
        again::<DeviceName>,
        read_order,
        again::<DevicePlacement>,
        again::<DevicePlacements>,
        again::<PlacementChoice>,
        again::<NpuOptions>,
        again::<LayerList>,
        again::<MatFormer>,
        again::<ContextFactor>,
        again::<Target>,
        again::<Power>,
        again::<KvCacheDtype>,
        |text| shown(ModelRef::parse(text)),
        |text| shown(text.parse::<AllowedHost>()),
        |text| shown(text.parse::<AllowedOrigin>()),
    ];
    let refusals: Vec<String> = parsers.iter().filter_map(|parse| parse(text).err()).collect();
    if refusals.len() < parsers.len() { Ok(()) } else { Err(refusals.join("\n")) }
}

/// Parses an order of devices. The text of a named order lists its devices, and is another, explicit order of them.
fn read_order(text: &str) -> Result<(), String> {
    let order = text.parse::<DeviceOrder>().map_err(|error| error.to_string())?;
    let written = order.to_string().parse::<DeviceOrder>().expect("the text of an order");
    assert_eq!(written.devices(), order.devices(), "{text:?} is written as {order}");
    Ok(())
}

fn again<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) -> Result<(), String> {
    let value = text.parse::<T>().map_err(|error| error.to_string())?;
    let written = value.to_string();
    assert_eq!(written.parse::<T>().ok().as_ref(), Some(&value), "{text:?} is written as {written:?}");
    Ok(())
}
