//! Digest of a manifest's own text, as its last field, so that a changed or lost field is noticed.

use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::{MANIFEST_FILE, Manifest};
use crate::Sha256;

/// End of the fields, before the digest.
const OPEN: &str = ",\n  \"digest\": \"";

/// Text after the digest.
const CLOSE: &str = "\"\n}";

/// End of a manifest without a digest.
const END: &str = "\n}";

/// A manifest that is not the text of which it states the digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{MANIFEST_FILE} was changed after it was written; restore it, or remove its field \"digest\" if the change is intended"
)]
pub struct ManifestChanged;

/// The field with the digest.
#[derive(Deserialize)]
struct DigestField {
    digest: Option<IgnoredAny>,
}

/// Returns the text of a manifest with its digest.
///
/// # Errors
/// As [`serde_json::to_vec_pretty`].
pub fn to_json(manifest: &Manifest) -> serde_json::Result<Vec<u8>> {
    seal(manifest)
}

/// Returns the text of an object that has fields, with its digest.
fn seal(object: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(object)?;
    text.truncate(text.len() - END.len());
    let digest = Sha256::of(&text);
    text.extend(format!("{OPEN}{digest}{CLOSE}").bytes());
    Ok(text)
}

/// Checks that a text is the one of which it states the digest. Texts that state none are accepted, as older versions
/// and authors of manifests write them.
///
/// # Errors
/// [`ManifestChanged`]. Text that is no JSON is accepted, because its reader refuses it.
pub fn check_digest(text: &[u8]) -> Result<(), ManifestChanged> {
    let states_digest =
        || serde_json::from_slice::<DigestField>(text).is_ok_and(|found| found.digest.is_some());
    match sealed(text) {
        Some((fields, stated)) if Sha256::of(fields).to_string().as_bytes() == stated => Ok(()),
        Some(_) => Err(ManifestChanged),
        None if states_digest() => Err(ManifestChanged),
        None => Ok(()),
    }
}

/// Splits a text that ends in a digest into the text before it and the digest.
fn sealed(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_end().strip_suffix(CLOSE.as_bytes())?;
    let (rest, stated) = text.split_at_checked(text.len().checked_sub(2 * size_of::<Sha256>())?)?;
    Some((rest.strip_suffix(OPEN.as_bytes())?, stated))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_lost_field_is_noticed() {
        let manifest = json!({"format": 1, "tokenizer": {"file": "tokenizer.json", "stop": [2]}});
        let text = seal(&manifest).unwrap();
        assert_eq!(check_digest(&text), Ok(()));
        assert_eq!(check_digest(&[&text, b"\n".as_slice()].concat()), Ok(()));

        let mut value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["tokenizer"], manifest["tokenizer"]);
        assert!(value["tokenizer"].as_object_mut().unwrap().remove("stop").is_some());
        for changed in [serde_json::to_vec_pretty(&value).unwrap(), serde_json::to_vec(&value).unwrap()] {
            assert_eq!(check_digest(&changed), Err(ManifestChanged));
        }
        value.as_object_mut().unwrap().remove("digest");
        assert_eq!(check_digest(&serde_json::to_vec(&value).unwrap()), Ok(()));
    }

    #[test]
    fn manifests_without_a_digest_are_accepted() {
        for text in [br#"{"format": 1}"#.as_slice(), b"{}", b"", b"{\"digest\": null}"] {
            assert_eq!(check_digest(text), Ok(()));
        }
        assert_eq!(check_digest(b"{\"digest\": 7}"), Err(ManifestChanged));
    }
}
