//! Stored responses: in memory, with limits on their number and size. The oldest response of the key whose responses
//! take the most memory is evicted first.
//!
//! A response holds the turns of its conversation and shares them with earlier responses. Turns are charged with their
//! memory from the request on. Only the key that created a response can read it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Bytes;
use narthex_gateway::{keys::KeyHash, request::Message};
use parking_lot::Mutex;

use super::{history::HistoryItem, item::OutputItem, object::ResponseObject};
use crate::{
    error::ApiError,
    protocol::outline::{VALUE_BYTES, values_in},
};

/// Maximum number of stored responses.
const MAX_RESPONSES: usize = 1000;

/// Maximum memory of all stored responses, and of the turns of requests whose responses will be stored.
const MAX_BYTES: usize = 64 << 20;

/// Delay before a client should repeat a request that found no room.
const RETRY: Duration = Duration::from_secs(15);

/// The stored responses of a server. Clones share them.
#[derive(Clone)]
pub(crate) struct ResponseStore {
    responses: Arc<Mutex<VecDeque<StoredResponse>>>,
    bytes: Arc<AtomicUsize>,
    max_responses: usize,
    max_bytes: usize,
}

/// Bytes that a stored value is charged with until it is dropped.
struct Charge {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Messages of a request or of its answer.
pub(crate) struct Turn {
    messages: Vec<Message>,
    charge: Charge,
}

impl Turn {
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the memory of the messages in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.charge.bytes
    }
}

/// Turns of a conversation, the oldest first.
pub(crate) type Turns = Vec<Arc<Turn>>;

struct StoredResponse {
    owner: Option<KeyHash>,
    id: String,
    /// The response as JSON.
    json: Bytes,
    /// Its items, which requests may reference.
    output: Vec<OutputItem>,
    turns: Turns,
    charge: Charge,
}

impl ResponseStore {
    pub(crate) fn new() -> Self {
        Self::with_limits(MAX_RESPONSES, MAX_BYTES)
    }

    fn with_limits(max_responses: usize, max_bytes: usize) -> Self {
        Self { responses: Arc::default(), bytes: Arc::default(), max_responses, max_bytes }
    }

    fn charge(&self, bytes: usize) -> Charge {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Charge { all: self.bytes.clone(), bytes }
    }

    /// Creates a turn. Evicts the oldest responses until there is room for it.
    ///
    /// # Errors
    /// 429 if the turns of other requests take all the room.
    fn turn(&self, messages: Vec<Message>) -> Result<Arc<Turn>, ApiError> {
        let turn = Turn { charge: self.charge(memory(&messages)), messages };
        let exceeds =
            |evicted: usize| self.bytes.load(Ordering::Relaxed).saturating_sub(evicted) > self.max_bytes;
        // Responses are evicted only if that makes room: running requests hold the rest.
        if exceeds(0) && exceeds(bytes_by_owner(&self.responses.lock()).values().sum()) {
            let message =
                "the memory for stored responses is full; send a shorter conversation, or \"store\": false";
            return Err(ApiError::overloaded(message, RETRY));
        }
        self.evict();
        Ok(Arc::new(turn))
    }

    /// Returns a response of this owner as JSON.
    pub(crate) fn get(&self, owner: Option<KeyHash>, id: &str) -> Option<Bytes> {
        let responses = self.responses.lock();
        let found = responses.iter().find(|stored| stored.id == id && stored.owner == owner);
        found.map(|stored| stored.json.clone())
    }

    /// Returns the turns of the conversation up to a response of this owner.
    pub(crate) fn turns(&self, owner: Option<KeyHash>, id: &str) -> Option<Turns> {
        let responses = self.responses.lock();
        let found = responses.iter().find(|stored| stored.id == id && stored.owner == owner);
        found.map(|stored| stored.turns.clone())
    }

    /// Returns the input of a response of this owner.
    pub(super) fn input(&self, owner: Option<KeyHash>, id: &str) -> Option<Arc<Turn>> {
        // The last turn is the answer.
        self.turns(owner, id)?.into_iter().nth_back(1)
    }

    /// Returns the memory of all stored responses in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the items with these ids in the responses of this owner.
    pub(super) fn items(
        &self,
        owner: Option<KeyHash>,
        ids: &HashSet<String>,
    ) -> HashMap<String, HistoryItem> {
        let responses = self.responses.lock();
        let own = responses.iter().filter(|stored| stored.owner == owner);
        let items = own.flat_map(|stored| &stored.output).filter(|item| ids.contains(item.id()));
        items.map(|item| (item.id().to_owned(), item.to_history())).collect()
    }

    /// Removes a response of this owner. Returns false if it does not exist.
    pub(crate) fn remove(&self, owner: Option<KeyHash>, id: &str) -> bool {
        let mut responses = self.responses.lock();
        let found = responses.iter().position(|stored| stored.id == id && stored.owner == owner);
        found.and_then(|index| responses.remove(index)).is_some()
    }

    fn insert(&self, stored: StoredResponse) {
        self.responses.lock().push_back(stored);
        self.evict();
    }

    /// Evicts responses beyond the limits.
    fn evict(&self) {
        let mut responses = self.responses.lock();
        while responses.len() > self.max_responses || self.bytes.load(Ordering::Relaxed) > self.max_bytes {
            let Some(index) = next_evicted(&responses) else { break };
            responses.remove(index);
        }
    }
}

/// Returns the position of the oldest response of the owner whose responses take the most memory.
fn next_evicted(responses: &VecDeque<StoredResponse>) -> Option<usize> {
    let bytes = bytes_by_owner(responses);
    let largest = bytes.values().copied().max()?;
    responses.iter().position(|stored| bytes[&stored.owner] == largest)
}

/// Returns the memory of stored responses for each owner.
fn bytes_by_owner(responses: &VecDeque<StoredResponse>) -> HashMap<Option<KeyHash>, usize> {
    let mut bytes: HashMap<Option<KeyHash>, usize> = HashMap::new();
    let mut counted = HashSet::new();
    for stored in responses {
        // Responses of a conversation share its first turns.
        let own = stored.turns.iter().rev().take_while(|turn| counted.insert(Arc::as_ptr(turn)));
        let turns: usize = own.map(|turn| turn.charge.bytes).sum();
        *bytes.entry(stored.owner).or_default() += stored.charge.bytes + turns;
    }
    bytes
}

/// A response that is stored once it is complete.
pub(crate) struct PendingStore {
    store: ResponseStore,
    owner: Option<KeyHash>,
    /// Turns up to that of the request.
    turns: Turns,
}

impl PendingStore {
    /// Creates the store of the response to `input` after earlier turns.
    ///
    /// # Errors
    /// 429 if there is no room for the input.
    pub(super) fn new(
        store: ResponseStore,
        owner: Option<KeyHash>,
        mut turns: Turns,
        input: Vec<Message>,
    ) -> Result<Self, ApiError> {
        turns.push(store.turn(input)?);
        Ok(Self { store, owner, turns })
    }

    pub(super) fn store(self, response: &ResponseObject) {
        let Self { store, owner, mut turns } = self;
        let messages = response.messages();
        turns.push(Arc::new(Turn { charge: store.charge(memory(&messages)), messages }));
        let json = serde_json::to_vec(response).unwrap_or_default();
        // The items take about as much as their JSON.
        let bytes = 2 * json.len() + turns.len() * size_of::<Arc<Turn>>();
        let charge = store.charge(bytes);
        store.insert(StoredResponse {
            owner,
            id: response.id.clone(),
            json: json.into(),
            output: response.output.clone(),
            turns,
            charge,
        });
    }
}

/// Returns an upper bound on the memory of messages in bytes. Media count as base64, in which a client may read them.
fn memory(messages: &[Message]) -> usize {
    let calls = messages.iter().flat_map(|message| &message.tool_calls);
    let arguments = calls.map(|call| &call.function.arguments);
    let (values, sources) = arguments.fold((0, 0), |(values, sources), arguments| {
        (values + values_in(arguments), sources + arguments.source_bytes())
    });
    let media = messages.iter().flat_map(|message| message.content.media());
    let media: usize = media.map(|media| media.bytes().len().div_ceil(3) * 4).sum();
    json_length(&messages) + sources + (messages.len() + values) * VALUE_BYTES + media
}

/// Returns the memory of turns in bytes.
pub(super) fn memory_of(turns: &Turns) -> usize {
    turns.iter().map(|turn| turn.charge.bytes).sum()
}

/// Returns the length of a value as JSON.
pub(super) fn json_length(value: &impl serde::Serialize) -> usize {
    let mut length = JsonLength(0);
    // The writes do not fail. A value that is not JSON counts up to its error.
    let _ = serde_json::to_writer(&mut length, value);
    length.0
}

/// Number of bytes that were written. The bytes are not stored.
struct JsonLength(usize);

impl io::Write for JsonLength {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn messages(turns: &Turns) -> impl Iterator<Item = Message> {
    turns.iter().flat_map(|turn| turn.messages.iter().cloned())
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::{FunctionCall, Role, ToolCall};

    use super::{
        super::{item::ResponseStatus, settings::ResponseSettings},
        *,
    };
    use crate::protocol::reply::WholeToolCall;

    fn add(store: &ResponseStore, id: &str, turns: Turns) {
        add_of(store, None, id, turns);
    }

    fn add_of(store: &ResponseStore, owner: Option<KeyHash>, id: &str, turns: Turns) {
        let input = vec![Message::new(Role::User, "x".repeat(100))];
        let pending = PendingStore::new(store.clone(), owner, turns, input).unwrap();
        pending.store(&ResponseObject::new(id.to_owned(), 0, "m".to_owned(), ResponseSettings::default()));
    }

    #[test]
    fn the_oldest_responses_leave_first() {
        let store = ResponseStore::with_limits(2, usize::MAX);
        for id in ["a", "b", "c"] {
            add(&store, id, store.turns(None, "a").unwrap_or_default());
        }
        assert!(store.get(None, "a").is_none());
        // The turn of an evicted response is kept by the responses after it.
        assert_eq!(messages(&store.turns(None, "b").unwrap()).count(), 2);
        assert!(store.remove(None, "b") && !store.remove(None, "b"));
        assert!(store.remove(None, "c"));
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_key_with_many_responses_evicts_its_own() {
        let store = ResponseStore::with_limits(4, usize::MAX);
        let [one, other] = ["first-secret", "second-secret"].map(|secret| Some(KeyHash::of(secret)));
        add_of(&store, one, "a", Vec::new());
        for id in 0..20 {
            add_of(&store, other, &id.to_string(), Vec::new());
        }
        assert!(store.get(one, "a").is_some());
        assert!(store.get(other, "16").is_none() && store.get(other, "17").is_some());
    }

    #[test]
    fn the_bytes_of_all_responses_are_limited() {
        let store = ResponseStore::with_limits(usize::MAX, 4000);
        for id in 0..100 {
            add(&store, &id.to_string(), Vec::new());
            assert!(store.bytes.load(Ordering::Relaxed) <= 4000);
        }
        assert!(store.get(None, "99").is_some() && store.get(None, "0").is_none());
    }

    #[test]
    fn parallel_calls_are_one_message_of_the_next_turn() {
        let store = ResponseStore::new();
        let settings = ResponseSettings::default();
        let calls = ["a", "b"].map(|id| {
            let call = WholeToolCall { id: id.to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
            settings.call(&format!("fc_{id}"), &call, ResponseStatus::Completed)
        });
        let thought = settings.reasoning("rs", "Two.");
        let mut response = ResponseObject::new("r".to_owned(), 0, "m".to_owned(), settings);
        response.output = [thought].into_iter().chain(calls).collect();
        let input = vec![Message::new(Role::User, "Hi".to_owned())];
        PendingStore::new(store.clone(), None, Vec::new(), input).unwrap().store(&response);
        let history: Vec<Message> = messages(&store.turns(None, "r").unwrap()).collect();
        assert_eq!((history.len(), history[1].tool_calls.len()), (2, 2), "{history:?}");
        assert_eq!(history[1].reasoning_content.as_deref(), Some("Two."));
        // Its items can be referenced by the key that created it.
        let ids = ["fc_a".to_owned(), "fc_c".to_owned()].into();
        let found = store.items(None, &ids);
        assert_eq!((found.len(), found.contains_key("fc_a")), (1, true));
        assert!(store.items(Some(KeyHash::of("another-secret")), &ids).is_empty());
    }

    #[test]
    fn messages_are_charged_with_their_memory_while_their_request_runs() {
        let nested = |values: usize| {
            let arguments = serde_json::json!(vec![serde_json::json!({}); values - 1]).into();
            let function = FunctionCall { name: "f".to_owned(), arguments };
            let message = Message::new(Role::Assistant, String::new());
            vec![Message { tool_calls: vec![ToolCall { id: None, function }], ..message }]
        };
        let store = ResponseStore::with_limits(usize::MAX, 1000 * VALUE_BYTES);
        add(&store, "a", Vec::new());
        let pending = PendingStore::new(store.clone(), None, Vec::new(), nested(900)).unwrap();
        assert!(memory_of(&pending.turns) > 900 * VALUE_BYTES);
        let refused = PendingStore::new(store.clone(), None, Vec::new(), nested(200)).err().unwrap();
        assert_eq!(refused.status(), axum::http::StatusCode::TOO_MANY_REQUESTS);
        // A request that eviction cannot help leaves the responses of others.
        assert!(store.remove(None, "a"));
        drop(pending);
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_key_reads_its_own_responses_alone() {
        let store = ResponseStore::new();
        add(&store, "a", Vec::new());
        let other = Some(KeyHash::of("another-secret"));
        assert!(store.get(other, "a").is_none() && store.turns(other, "a").is_none());
        assert!(!store.remove(other, "a"));
    }
}
