//! Files of a package: their size, and those that the manifest uses without a digest.

use std::collections::BTreeSet;

use super::{FileRange, Manifest, TableEncoding, TranscriberEntry, VoiceEntry};

impl Manifest {
    /// Returns the bytes of all files of the package except the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Returns the files that the manifest uses but does not list with their digests.
    pub fn unlisted(&self) -> BTreeSet<&str> {
        let graphs = self.every_graph().map(|graph| &graph.file);
        let contexts = self.contexts.iter().map(|context| &context.file);
        let tables = self.tables.iter().flat_map(|table| ranges(&table.encoding)).map(|range| &range.file);
        let tokenizer = self.tokenizer.as_ref().map(|tokenizer| &tokenizer.file);
        let text = [tokenizer, self.chat.as_ref().map(|chat| &chat.template)];
        let voice = self.voice.iter().flat_map(VoiceEntry::files);
        let used = graphs.chain(contexts).chain(tables).chain(text.into_iter().flatten());
        used.chain(&self.kept_tokens)
            .chain(voice)
            .chain(self.transcriber.iter().flat_map(TranscriberEntry::files))
            .filter(|path| !self.files.contains_key(*path))
            .map(String::as_str)
            .collect()
    }
}

fn ranges(encoding: &TableEncoding) -> impl Iterator<Item = &FileRange> {
    let [first, second] = match encoding {
        TableEncoding::Plain { data, .. } => [Some(data), None],
        TableEncoding::W8 { quants, scales, .. } => [Some(quants), Some(scales)],
    };
    first.into_iter().chain(second)
}
