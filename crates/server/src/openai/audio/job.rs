//! The work of a request for a transcript.

use std::{io::Cursor, ops::ControlFlow};

use axum::body::Bytes;
use narthex_audio::{Decoder, transcript::Transcript};
use narthex_gateway::{
    Cancel, Error, ReadyModel,
    request::{TranscriptionEvent, TranscriptionRequest},
};

use crate::app::Meter;

/// Maximum duration of a file in seconds. A small file can state days of silence.
pub(super) const MAX_SECONDS: u64 = 6 * 60 * 60;

/// The work of a request.
pub(super) struct TranscriptionJob {
    pub(super) file: Bytes,
    pub(super) request: TranscriptionRequest,
    pub(super) meter: Meter,
}

impl TranscriptionJob {
    /// Transcribes the file, and charges the tokens of the transcript.
    pub(super) fn run(
        self,
        model: &ReadyModel,
        cancel: &Cancel,
        mut on: impl FnMut(TranscriptionEvent) -> ControlFlow<()>,
    ) -> Result<Transcript, Error> {
        let mut audio = Decoder::open(Cursor::new(self.file))?.at_most(MAX_SECONDS);
        let transcript = model.transcribe(&self.request, &mut audio, &mut on, cancel)?;
        self.meter.tokens(transcript.segments.iter().map(|segment| segment.tokens.len()).sum());
        Ok(transcript)
    }
}
