//! Stored responses: in memory, with limits on their number and size. The oldest are evicted first.
//!
//! A response holds the turns of its conversation and shares them with earlier responses. Only the key that created a
//! response can read it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use narthex_gateway::{keys::KeyHash, request::Message};
use parking_lot::Mutex;

use super::{history::HistoryItem, object::ResponseObject};

/// Maximum number of stored responses.
const MAX_RESPONSES: usize = 1000;

/// Maximum bytes of all stored responses.
const MAX_BYTES: usize = 64 << 20;

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

/// Messages of one request and its answer.
pub(crate) struct Turn {
    messages: Vec<Message>,
    _charge: Charge,
}

/// Turns of a conversation, the oldest first.
pub(crate) type Turns = Vec<Arc<Turn>>;

struct StoredResponse {
    owner: Option<KeyHash>,
    response: ResponseObject,
    turns: Turns,
    _charge: Charge,
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

    /// Returns a response of this owner.
    pub(crate) fn get(&self, owner: Option<KeyHash>, id: &str) -> Option<ResponseObject> {
        let responses = self.responses.lock();
        let found = responses.iter().find(|stored| stored.response.id == id && stored.owner == owner);
        found.map(|stored| stored.response.clone())
    }

    /// Returns the turns of the conversation up to a response of this owner.
    pub(crate) fn turns(&self, owner: Option<KeyHash>, id: &str) -> Option<Turns> {
        let responses = self.responses.lock();
        let found = responses.iter().find(|stored| stored.response.id == id && stored.owner == owner);
        found.map(|stored| stored.turns.clone())
    }

    /// Returns the items with these ids in the responses of this owner.
    pub(super) fn items(
        &self,
        owner: Option<KeyHash>,
        ids: &HashSet<String>,
    ) -> HashMap<String, HistoryItem> {
        let responses = self.responses.lock();
        let own = responses.iter().filter(|stored| stored.owner == owner);
        let items = own.flat_map(|stored| &stored.response.output).filter(|item| ids.contains(item.id()));
        items.map(|item| (item.id().to_owned(), item.to_history())).collect()
    }

    /// Removes a response of this owner. Returns false if it does not exist.
    pub(crate) fn remove(&self, owner: Option<KeyHash>, id: &str) -> bool {
        let mut responses = self.responses.lock();
        let found = responses.iter().position(|stored| stored.response.id == id && stored.owner == owner);
        found.and_then(|index| responses.remove(index)).is_some()
    }

    fn insert(&self, stored: StoredResponse) {
        let mut responses = self.responses.lock();
        responses.push_back(stored);
        while responses.len() > self.max_responses || self.bytes.load(Ordering::Relaxed) > self.max_bytes {
            if responses.pop_front().is_none() {
                break;
            }
        }
    }
}

/// A response that is stored once it is complete.
pub(crate) struct PendingStore {
    pub(crate) store: ResponseStore,
    pub(crate) owner: Option<KeyHash>,
    /// Turns before the request.
    pub(crate) turns: Turns,
    /// Messages of the request.
    pub(crate) input: Vec<Message>,
}

impl PendingStore {
    /// Stores the response.
    pub(super) fn store(self, response: &ResponseObject) {
        let Self { store, owner, mut turns, input } = self;
        let messages: Vec<Message> = input.into_iter().chain(response.messages()).collect();
        let charge = store.charge(json_length(&messages));
        turns.push(Arc::new(Turn { messages, _charge: charge }));
        let bytes = json_length(response) + turns.len() * size_of::<Arc<Turn>>();
        let charge = store.charge(bytes);
        store.insert(StoredResponse { owner, response: response.clone(), turns, _charge: charge });
    }
}

fn json_length(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

/// Returns the messages of turns.
pub(super) fn messages(turns: &Turns) -> impl Iterator<Item = Message> {
    turns.iter().flat_map(|turn| turn.messages.iter().cloned())
}

#[cfg(test)]
mod tests {
    use narthex_gateway::request::Role;

    use super::{
        super::object::{OutputItem, ReasoningPart, ResponseSettings, ResponseStatus},
        *,
    };
    use crate::reply::WholeToolCall;

    fn add(store: &ResponseStore, id: &str, turns: Turns) {
        let input = vec![Message::new(Role::User, "x".repeat(100))];
        let pending = PendingStore { store: store.clone(), owner: None, turns, input };
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
        let thought = OutputItem::reasoning("rs", vec![ReasoningPart::text("Two.")]);
        let mut response = ResponseObject::new("r".to_owned(), 0, "m".to_owned(), settings);
        response.output = [thought].into_iter().chain(calls).collect();
        let input = vec![Message::new(Role::User, "Hi".to_owned())];
        PendingStore { store: store.clone(), owner: None, turns: Vec::new(), input }.store(&response);
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
    fn a_key_reads_its_own_responses_alone() {
        let store = ResponseStore::new();
        add(&store, "a", Vec::new());
        let other = Some(KeyHash::of("another-secret"));
        assert!(store.get(other, "a").is_none() && store.turns(other, "a").is_none());
        assert!(!store.remove(other, "a"));
    }
}
