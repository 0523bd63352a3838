//! Names of the parts of a divided GGUF file, as llama.cpp writes them: `NAME-00001-of-00003.gguf`.

/// Number of digits of a part's number and of the number of parts.
const DIGITS: usize = 5;

/// The name of one part of a divided GGUF file, with or without its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartName<'a> {
    /// Name without the number, the number of parts and the extension.
    pub stem: &'a str,
    /// Number of the part, from 1 to [`Self::count`].
    pub number: u32,
    /// Number of parts.
    pub count: u32,
    extension: &'a str,
}

impl<'a> PartName<'a> {
    /// Parses the name of a part. Returns `None` for other names, and for a number that is not from 1 to the number of
    /// parts.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, extension) = name.rsplit_once('.')?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let number = digits(number)?;
        let count = digits(count)?;
        let is_part = extension.eq_ignore_ascii_case("gguf") && (1..=count).contains(&number);
        is_part.then_some(Self { stem, number, count, extension })
    }

    /// Returns the names of all parts, in order.
    pub fn all(self) -> impl Iterator<Item = String> {
        let Self { stem, count, extension, .. } = self;
        (1..=count).map(move |number| format!("{stem}-{number:0DIGITS$}-of-{count:0DIGITS$}.{extension}"))
    }

    /// Returns whether both names belong to parts of the same file.
    pub fn is_of_same_file(self, other: PartName<'_>) -> bool {
        self.stem == other.stem && self.count == other.count && self.extension == other.extension
    }
}

fn digits(text: &str) -> Option<u32> {
    let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_recognised_by_their_names() {
        let check = |name: &str, expect: Option<(&str, u32, u32)>| {
            let found = PartName::parse(name).map(|part| (part.stem, part.number, part.count));
            assert_eq!(found, expect, "{name}");
        };
        check("m-q4-00002-of-00003.gguf", Some(("m-q4", 2, 3)));
        check("q4/m-00001-of-00001.GGUF", Some(("q4/m", 1, 1)));
        check("m-00000-of-00003.gguf", None);
        check("m-00004-of-00003.gguf", None);
        check("m-1-of-3.gguf", None);
        check("m-+0001-of-00003.gguf", None);
        check("m-00001-of-00003.safetensors", None);
        check("m.gguf", None);
    }

    #[test]
    fn every_part_names_the_others() {
        let second = PartName::parse("d/m-00002-of-00002.gguf").unwrap();
        let names: Vec<String> = second.all().collect();
        assert_eq!(names, ["d/m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf"]);
        assert!(second.is_of_same_file(PartName::parse(&names[0]).unwrap()));
        assert!(!second.is_of_same_file(PartName::parse("d/m-00002-of-00003.gguf").unwrap()));
    }
}
