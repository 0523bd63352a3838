//! Request bodies, JSON or forms, read into typed structs with errors that name the field. Shared by every protocol.
//!
//! The memory of a body is reserved before the body is read, and that of its values before it is parsed. Both are
//! released after its request was handed to the gateway. Compressed bytes have a share of their own until they were
//! decompressed.

use axum::extract::{FromRequest, FromRequestParts, Request};
use narthex_gateway::Gateway;
use narthex_spec::DeviceMap;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, Error},
};
use serde_json::Value;

use super::{
    fields::BodyFields,
    ignored::IgnoredParameters,
    lenient_json,
    multipart::{self, Form, FromForm},
    outline,
};
use crate::{
    app::{App, ServerResources},
    error::ApiError,
    http::{
        body::{BodyReader, Encoding, ReceivedBody},
        budget::Reservation,
        connection::RequestConnection,
        incomplete_bodies::BodySize,
        limits::Limits,
    },
};

/// A request that an endpoint reads from a JSON body.
pub(crate) trait FromBody: Sized + Send + 'static {
    /// Field that may be a long list of tokens.
    const TOKENS: Option<&'static str> = None;

    /// Reads and checks the fields of a body whose values were counted. Adds parameters without effect on the answer to
    /// `ignored`. Runs on a thread for blocking work.
    fn read(body: &BodyFields<'_>, ignored: &mut IgnoredParameters) -> Result<Self, ApiError>;

    /// Reads a body as [`Self::read`] does, for a caller of this gateway.
    fn read_for(
        _gateway: &Gateway,
        body: &BodyFields<'_>,
        ignored: &mut IgnoredParameters,
    ) -> Result<Self, ApiError> {
        Self::read(body, ignored)
    }
}

/// The request in a body of any content type.
pub(crate) struct Body<T> {
    pub(crate) request: T,
    /// Parameters without effect on the answer.
    pub(crate) ignored: IgnoredParameters,
    /// Memory that is reserved for the request.
    pub(crate) reservation: Reservation,
}

/// The request in a body of `multipart/form-data`.
pub(crate) struct FormBody<T> {
    pub(crate) request: T,
    /// Parameters without effect on the answer.
    pub(crate) ignored: IgnoredParameters,
    /// Memory that is reserved for the request.
    pub(crate) reservation: Reservation,
}

/// A body that a handler takes, for the document of the API and for fuzz targets.
pub(crate) trait RequestBody {
    /// Media type of the body.
    const MEDIA_TYPE: &'static str;

    /// Reads a body up to the call of the gateway, without reserving memory.
    #[cfg(any(test, feature = "fuzzing"))]
    fn check(body: &[u8]) -> Result<(), ApiError>;
}

impl<T: FromBody> RequestBody for Body<T> {
    const MEDIA_TYPE: &'static str = "application/json";

    #[cfg(any(test, feature = "fuzzing"))]
    fn check(body: &[u8]) -> Result<(), ApiError> {
        read_checked::<T>(body).map(drop)
    }
}

impl<T: FromForm> RequestBody for FormBody<T> {
    const MEDIA_TYPE: &'static str = "multipart/form-data";

    #[cfg(any(test, feature = "fuzzing"))]
    fn check(body: &[u8]) -> Result<(), ApiError> {
        let form = Form::parse(body.to_vec().into(), &multipart::boundary_of(body))?;
        T::read(form, &mut IgnoredParameters::default()).map(drop)
    }
}

/// Receives the bytes of a request's body.
async fn receive<S: Send + Sync>(request: Request, state: &S) -> Result<(ReceivedBody, App), ApiError> {
    let (mut parts, body) = request.into_parts();
    let app = App::from_request_parts(&mut parts, state).await?;
    let connection = RequestConnection::of(&parts.extensions).cloned();
    let encoding = Encoding::of(&parts.headers)?;
    let limit = connection.as_ref().map_or_else(|| Limits::standard().body, |it| it.limits().body);
    let reader = BodyReader { budget: &app.shared.bodies, connection: connection.as_ref(), limit };
    let received = reader.read(body, encoding).await?;
    if let Some(connection) = connection {
        connection.request_received();
    }
    Ok((received, app))
}

/// Returns the size of a received body for its thread.
fn size(encoding: Encoding, bytes: &[u8]) -> BodySize {
    match encoding {
        Encoding::Identity => BodySize::of(bytes.len()),
        Encoding::Gzip | Encoding::Zstd => BodySize::Large,
    }
}

/// Returns the request, unless a parameter without effect is refused.
fn unless_strict<T>(
    is_strict: bool,
    request: T,
    ignored: IgnoredParameters,
) -> Result<(T, IgnoredParameters), ApiError> {
    match ignored.strict() {
        Some(name) if is_strict => Err(ApiError::unsupported(name)),
        _ => Ok((request, ignored)),
    }
}

impl<S: Send + Sync, T: FromForm> FromRequest<S> for FormBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let boundary = multipart::boundary(request.headers())?;
        let (received, app) = receive(request, state).await?;
        let ServerResources { jobs, options, .. } = app.shared;
        let ReceivedBody { bytes, encoding, reservation, compressed } = received;

        let held = reservation.clone();
        let is_strict = options.strict_parameters;
        let read = jobs.run_reader(size(encoding, &bytes), move || {
            let bytes = encoding.decode(bytes)?;
            drop(compressed);
            held.shrink(bytes.len());
            let mut ignored = IgnoredParameters::default();
            let request = T::read(Form::parse(bytes.into(), &boundary)?, &mut ignored)?;
            unless_strict(is_strict, request, ignored)
        });
        let (request, ignored) = read.await?;
        Ok(Self { request, ignored, reservation })
    }
}

impl<S: Send + Sync, T: FromBody> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (received, App { gateway, shared, device_map, .. }) = receive(request, state).await?;
        let ServerResources { jobs, bodies, options, .. } = shared;
        let ReceivedBody { bytes, encoding, reservation, compressed } = received;

        let size = size(encoding, &bytes);
        let is_strict = options.strict_parameters;
        let read = move |bytes: &[u8]| {
            let mut ignored = IgnoredParameters::default();
            let fields = BodyFields::divide(bytes)?;
            let devices: RequestedDevices = fields.read()?;
            let request = T::read_for(&gateway, &fields, &mut ignored)?;
            Ok::<_, ApiError>((unless_strict(is_strict, request, ignored)?, devices))
        };

        let held = reservation.clone();
        let budget = bodies.clone();
        let read_now = read.clone();
        let counted = jobs.run_reader(size, move || {
            let mut bytes = encoding.decode(bytes)?;
            drop(compressed);
            lenient_json::normalise(&mut bytes);
            held.shrink(bytes.len());
            let values = outline::count_values(&bytes, T::TOKENS)?.bytes();
            if budget.try_reserve_values(&held, values) {
                return read_now(&bytes).map(CountedBody::Read);
            }
            Ok(CountedBody::Unread { bytes, values })
        });
        let ((request, ignored), devices) = match counted.await? {
            CountedBody::Read(read) => read,
            CountedBody::Unread { bytes, values } => {
                bodies.reserve_values(&reservation, values).await?;
                jobs.run_reader(BodySize::of(bytes.len()), move || read(&bytes)).await?
            }
        };
        if let Some(map) = devices.device_map {
            // Nothing else sets the map of this request.
            let _ = device_map.set(map);
        }
        Ok(Self { request, ignored, reservation })
    }
}

/// Devices on which a model that is not in memory is loaded, in a body of any endpoint.
#[derive(Deserialize)]
struct RequestedDevices {
    #[serde(default, deserialize_with = "filled")]
    device_map: Option<DeviceMap>,
}

/// A body whose values were counted.
enum CountedBody<T> {
    /// There was memory for its values.
    Read(T),
    Unread {
        bytes: Vec<u8>,
        /// Memory of its values in bytes.
        values: usize,
    },
}

/// Reads a body as [`Body`] does, without reserving memory.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_checked<T: FromBody>(body: &[u8]) -> Result<T, ApiError> {
    let mut body = body.to_vec();
    lenient_json::normalise(&mut body);
    outline::count_values(&body, T::TOKENS)?;
    let fields = BodyFields::divide(&body)?;
    fields.read::<RequestedDevices>()?;
    T::read(&fields, &mut IgnoredParameters::default())
}

/// Reads the value of a field with required parts. Null and an empty object count as absent.
pub(crate) fn filled<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    match Option::<Value>::deserialize(value)? {
        None => Ok(None),
        Some(Value::Object(fields)) if fields.is_empty() => Ok(None),
        Some(value) => T::deserialize(value).map(Some).map_err(D::Error::custom),
    }
}
