//! The bytes of request bodies, received and decompressed within limits on time and memory.

use std::{
    io::{self, Read},
    time::Duration,
};

use axum::{
    body::{Body as HttpBody, HttpBody as _},
    http::{HeaderMap, StatusCode, header::CONTENT_ENCODING},
};
use flate2::read::MultiGzDecoder;
use futures::StreamExt;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::{
    budget::{BodyBudget, CompressedBytes, MAX_BODY_BYTES, Reservation},
    connection::RequestConnection,
    incomplete_bodies::SMALL_BODY_BYTES,
};
use crate::error::ApiError;

/// Maximum time for a whole body, as a multiple of the maximum time between two parts of it.
const WHOLE_BODY: u32 = 6;

/// Number of received bytes after which a body lets other requests use its thread.
const TURN_BYTES: usize = 256 << 10;

/// Maximum window of a zstd body: the one that every client may use (RFC 9659).
const MAX_ZSTD_WINDOW: u64 = 8 << 20;

/// Compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let Some(encoding) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        match encoding.to_str().unwrap_or("").trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "zstd" => Ok(Self::Zstd),
            other => Err(ApiError::plain(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("the body has the encoding {other:?}; send it plain, or with gzip or zstd"),
            )),
        }
    }

    /// Returns the maximum number of plain bytes of a body with this many bytes.
    fn plain_bytes(self, length: usize) -> usize {
        if self == Self::Identity { length } else { MAX_BODY_BYTES }
    }

    /// Returns the plain bytes of a body. Stops at the maximum size of a body.
    pub(crate) fn decode(self, bytes: Vec<u8>) -> Result<Vec<u8>, ApiError> {
        let (name, decoded) = match self {
            Self::Identity => return Ok(bytes),
            Self::Gzip => ("gzip", read_bounded(MultiGzDecoder::new(bytes.as_slice()))),
            Self::Zstd => ("zstd", read_bounded(ZstdFrames::new(&bytes))),
        };
        let plain = decoded.map_err(|error| {
            ApiError::plain(StatusCode::BAD_REQUEST, format!("the body is not {name}: {error}"))
        })?;
        if plain.len() > MAX_BODY_BYTES { Err(too_large()) } else { Ok(plain) }
    }
}

/// Reads up to one byte more than a body may have.
fn read_bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    reader.take(MAX_BODY_BYTES as u64 + 1).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Reads the frames of a zstd body one after another.
struct ZstdFrames<'a> {
    rest: &'a [u8],
    frame: FrameDecoder,
}

impl<'a> ZstdFrames<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(MAX_ZSTD_WINDOW);
        Self { rest: bytes, frame }
    }

    /// Begins the next frame, or skips one without contents.
    fn next_frame(&mut self) -> io::Result<()> {
        match self.frame.init(&mut self.rest) {
            Ok(()) => Ok(()),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let rest = self.rest.split_at_checked(length as usize).map(|(_, rest)| rest);
                self.rest = rest.ok_or(io::ErrorKind::UnexpectedEof)?;
                Ok(())
            }
            Err(FrameDecoderError::WindowSizeTooBig { requested, max }) => Err(io::Error::other(format!(
                "it needs a window of {requested} bytes, but at most {max} are allowed; use a lower level"
            ))),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Read for ZstdFrames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            while self.frame.can_collect() == 0 && !self.frame.is_finished() {
                let block = BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.rest, block).map_err(io::Error::other)?;
            }
            let read = self.frame.read(buffer)?;
            if read > 0 || self.rest.is_empty() {
                return Ok(read);
            }
            self.next_frame()?;
        }
    }
}

/// The bytes of a body as they arrived.
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Vec<u8>,
    pub(crate) encoding: Encoding,
    /// Memory of the plain bytes.
    pub(crate) reservation: Reservation,
    /// Memory of these bytes, if they are compressed.
    pub(crate) compressed: Option<CompressedBytes>,
}

/// Reads bodies within their limits.
pub(crate) struct BodyReader<'a> {
    pub(crate) budget: &'a BodyBudget,
    pub(crate) connection: Option<&'a RequestConnection>,
    /// Maximum time between two parts.
    pub(crate) limit: Duration,
}

impl BodyReader<'_> {
    /// Reads a body. Checks its `Content-Length` first; without one, counts the bytes as they arrive.
    pub(crate) async fn read(&self, body: HttpBody, encoding: Encoding) -> Result<ReceivedBody, ApiError> {
        let length = body.size_hint().exact();
        if length.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
            return Err(too_large());
        }
        let mut room = length.map_or(SMALL_BODY_BYTES, |length| length as usize);
        // The length of compressed bytes does not bound the length of the decompressed ones.
        let (mut reservation, mut compressed) = match encoding {
            Encoding::Identity => (self.budget.reserve(room).await?, None),
            Encoding::Gzip | Encoding::Zstd => {
                let reservation = self.budget.reserve(MAX_BODY_BYTES).await?;
                (reservation, Some(self.budget.reserve_compressed(room).await?))
            }
        };

        let mut incomplete = self.budget.add_incomplete(encoding.plain_bytes(room));
        let mut bytes = Vec::new();
        let mut parts = body.into_data_stream();
        let mut turn = 0;
        let limit = self.limit;
        let end = Instant::now() + limit * WHOLE_BODY;
        loop {
            let part = timeout_at(end.min(Instant::now() + limit), parts.next());
            let part = tokio::select! {
                part = incomplete.wait_for_client(part) => part.ok_or_else(evicted)?.map_err(|_| too_slow(limit))?,
                () = self.stopped() => return Err(stopped()),
            };
            let Some(part) = part else { break };
            let part = part.map_err(|error| {
                ApiError::plain(
                    StatusCode::BAD_REQUEST,
                    format!("the body ended before it was complete: {error}"),
                )
            })?;
            if bytes.len() + part.len() > MAX_BODY_BYTES {
                return Err(too_large());
            }
            if bytes.len() + part.len() > room {
                room = MAX_BODY_BYTES;
                match &mut compressed {
                    None => reservation = self.budget.reserve(room).await?,
                    // The buffer doubles when it is full.
                    Some(compressed) => *compressed = self.budget.reserve_compressed(2 * room).await?,
                }
                incomplete = self.budget.add_incomplete(encoding.plain_bytes(room));
            }
            incomplete.received(part.len());
            if bytes.is_empty() {
                bytes.reserve_exact(length.unwrap_or(0) as usize);
            }
            bytes.extend_from_slice(&part);
            turn += part.len();
            if turn >= TURN_BYTES {
                turn = 0;
                yield_now().await;
            }
        }
        Ok(ReceivedBody { bytes, encoding, reservation, compressed })
    }

    /// Returns at the server's shutdown.
    async fn stopped(&self) {
        match self.connection {
            Some(connection) => connection.stopped().await,
            None => std::future::pending().await,
        }
    }
}

fn too_large() -> ApiError {
    ApiError::plain(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 32 MiB; send a smaller request")
}

fn too_slow(limit: Duration) -> ApiError {
    let whole = limit * WHOLE_BODY;
    let message = format!(
        "the body arrived too slowly: at most {limit:?} between two parts and {whole:?} in total are allowed; send it again"
    );
    ApiError::plain(StatusCode::REQUEST_TIMEOUT, message)
}

fn evicted() -> ApiError {
    let message = "the body arrived too slowly while other requests waited for memory; send it again";
    ApiError::plain(StatusCode::REQUEST_TIMEOUT, message)
}

fn stopped() -> ApiError {
    ApiError::plain(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    async fn receive(
        parts: impl futures::Stream<Item = &'static [u8]> + Send + 'static,
        limit: Duration,
    ) -> Result<ReceivedBody, ApiError> {
        let reader = BodyReader { budget: &BodyBudget::new(Duration::ZERO), connection: None, limit };
        let parts = parts.map(Ok::<_, std::io::Error>);
        reader.read(HttpBody::from_stream(parts), Encoding::Identity).await
    }

    fn message<T>(outcome: Result<T, ApiError>) -> String {
        outcome.err().unwrap().body()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_counted_as_it_comes() {
        let mebibyte: &[u8] = vec![b' '; 1 << 20].leak();
        let parts = |parts: usize| futures::stream::iter(vec![mebibyte; parts]);
        let body = receive(parts(32), Duration::from_secs(60)).await.unwrap();
        assert_eq!(body.bytes.len(), MAX_BODY_BYTES);
        let endless = futures::stream::repeat(mebibyte);
        assert!(message(receive(endless, Duration::from_secs(60)).await).contains("32 MiB"));
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up() {
        let begun = futures::stream::iter([b"{".as_slice()]).chain(futures::stream::pending());
        assert!(message(receive(begun, Duration::from_millis(1)).await).contains("too slow"));
    }

    #[tokio::test]
    async fn bodies_that_do_not_come_make_room_for_others() {
        let budget = BodyBudget::new(Duration::from_secs(15));
        let begin = || {
            let begun = futures::stream::iter([Ok::<_, std::io::Error>(b"{".as_slice())]);
            let body = HttpBody::from_stream(begun.chain(futures::stream::pending()));
            let budget = budget.clone();
            tokio::spawn(async move {
                let reader = BodyReader { budget: &budget, connection: None, limit: Duration::from_secs(60) };
                reader.read(body, Encoding::Identity).await
            })
        };
        let begun: Vec<_> = (0..64).map(|_| begin()).collect();
        // The bodies begin before this one waits.
        for _ in &begun {
            tokio::task::yield_now().await;
        }
        budget.reserve(1000).await.unwrap();
        let ended = begun.into_iter().find(tokio::task::JoinHandle::is_finished).unwrap();
        assert!(message(ended.await.unwrap()).contains("too slowly"));
    }

    /// Reads a body of this many mebibytes without a length.
    async fn read_mebibytes(
        budget: &BodyBudget,
        mebibytes: usize,
        encoding: Encoding,
    ) -> Result<ReceivedBody, ApiError> {
        let part: &'static [u8] = &[b' '; 1 << 20];
        let parts = futures::stream::iter(vec![part; mebibytes]).map(Ok::<_, std::io::Error>);
        let reader = BodyReader { budget, connection: None, limit: Duration::from_secs(60) };
        reader.read(HttpBody::from_stream(parts), encoding).await
    }

    #[tokio::test]
    async fn bodies_at_once_stay_within_the_budget() {
        let budget = BodyBudget::new(Duration::ZERO);
        let (mut held, mut refused) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            match read_mebibytes(&budget, 32, Encoding::Identity).await {
                Ok(body) => held.push(body),
                Err(error) => refused.push(error.status()),
            }
        }
        // Each counts twice, for its bytes and its texts, of 128 MiB in all.
        assert_eq!((held.len(), refused), (2, vec![StatusCode::TOO_MANY_REQUESTS; 6]));
        drop(held);
        read_mebibytes(&budget, 32, Encoding::Identity).await.unwrap();
    }

    #[tokio::test]
    async fn compressed_bytes_count_until_they_were_decompressed() {
        let budget = BodyBudget::new(Duration::ZERO);
        let received = read_mebibytes(&budget, 2, Encoding::Gzip).await.unwrap();
        let other = budget.reserve(1).await.unwrap();
        let refused = budget.reserve_work(&other, 100 << 20).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        drop(received.compressed);
        budget.reserve_work(&other, 100 << 20).await.unwrap();
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    #[test]
    fn compressed_bodies_are_decoded_to_a_limit() {
        for (encoding, compress) in
            [(Encoding::Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Encoding::Zstd, zstd as fn(&[u8]) -> Vec<u8>)]
        {
            let check = |bytes: Vec<u8>, text: &str| {
                let message = message(encoding.decode(bytes));
                assert!(message.contains(text), "{encoding:?}: {message}");
            };
            let [first, second] = ["{\"a\":", " \"b\"} "].map(|part| compress(part.as_bytes()));
            assert_eq!(encoding.decode(compress(b"{}")).unwrap(), b"{}");
            assert_eq!(encoding.decode([first, second].concat()).unwrap(), br#"{"a": "b"} "#);
            assert_eq!(encoding.decode(compress(&vec![b' '; MAX_BODY_BYTES])).unwrap().len(), MAX_BODY_BYTES);
            check(compress(&vec![0; MAX_BODY_BYTES + 1]), "32 MiB");
            check(b"{} is JSON".to_vec(), "the body is not");
            let whole = compress(b"{}");
            for length in 1..whole.len() {
                check(whole[..length].to_vec(), "the body is not");
            }
        }
    }

    #[test]
    fn windows_of_zstd_are_limited_and_frames_without_contents_are_skipped() {
        let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
        let body = [&skipped[..], &zstd(b"{}"), &skipped].concat();
        assert_eq!(Encoding::Zstd.decode(body).unwrap(), b"{}");
        let cut = message(Encoding::Zstd.decode(skipped[..9].to_vec()));
        assert!(cut.contains("not zstd"), "{cut}");
        // A frame with a window of 16 MiB.
        let wide = [&0xFD2F_B528_u32.to_le_bytes()[..], &[0, 14 << 3], &[1, 0, 0]].concat();
        let refused = message(Encoding::Zstd.decode(wide));
        assert!(refused.contains("window of 16777216 bytes"), "{refused}");
    }
}
