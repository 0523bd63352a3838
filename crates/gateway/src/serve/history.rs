//! The newest part of a conversation that fits in the model's context.

use narthex_text::template::{Message, Role};

use crate::error::Error;

/// Returns the prompt of the conversation without its oldest turns, as few as necessary, and the number of omitted
/// messages. `prompt` returns the prompt of a conversation, and [`Error::ContextLength`] if it is too long.
pub(super) fn newest<T>(
    messages: &[Message],
    prompt: impl Fn(Vec<&Message>) -> Result<T, Error>,
) -> Result<(T, usize), Error> {
    let attempt = |first| {
        let kept: Vec<&Message> = kept(messages, first).collect();
        let omitted = messages.len() - kept.len();
        Ok((prompt(kept)?, omitted))
    };
    let mut outcome = attempt(0);
    if !is_too_long(&outcome) {
        return outcome;
    }

    let later_turns: Vec<usize> =
        (1..messages.len()).filter(|&index| messages[index].role == Role::User).collect();
    // Conversations that begin before `low` are too long, those from `high` on are not.
    let mut low = 0;
    let mut high = later_turns.len();
    while low < high {
        let middle = low.midpoint(high);
        let next = attempt(later_turns[middle]);
        if is_too_long(&next) {
            low = middle + 1;
        } else {
            high = middle;
            outcome = next;
        }
    }
    outcome
}

fn is_too_long<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::ContextLength { .. }))
}

/// Returns the messages from index `first` on, and the system messages before it.
fn kept(messages: &[Message], first: usize) -> impl Iterator<Item = &Message> {
    let (older, newer) = messages.split_at(first);
    let system = older.iter().filter(|message| matches!(message.role, Role::System | Role::Developer));
    system.chain(newer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::TokenCount;

    /// Returns the kept texts and the number of omitted messages, if a prompt has at most `limit` messages.
    fn newest_of(roles: &[Role], limit: usize) -> Result<(Vec<String>, usize), Error> {
        let message = |(index, role): (usize, &Role)| Message::new(*role, index.to_string());
        let messages: Vec<Message> = roles.iter().enumerate().map(message).collect();
        newest(&messages, |messages| {
            let prompt = TokenCount::Exact(messages.len());
            if messages.len() > limit {
                return Err(Error::ContextLength {
                    param: "messages",
                    prompt,
                    context: limit,
                    of_model: limit,
                });
            }
            Ok(messages.into_iter().map(|message| message.content.text().into_owned()).collect())
        })
    }

    #[test]
    fn the_oldest_turns_are_omitted() {
        use Role::{Assistant, System, Tool, User};
        let roles =
            [System, User, Assistant, Tool, Assistant, User, Assistant, System, User, Assistant, User];
        let check = |limit: usize, expect: &[&str], omitted: usize| {
            let (kept, found) = newest_of(&roles, limit).unwrap();
            assert_eq!(
                (kept, found),
                (expect.iter().map(|&text| text.to_owned()).collect(), omitted),
                "{limit}"
            );
        };
        check(11, &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"], 0);
        // The call of a tool and its result belong to one turn.
        check(10, &["0", "5", "6", "7", "8", "9", "10"], 4);
        check(7, &["0", "5", "6", "7", "8", "9", "10"], 4);
        check(6, &["0", "7", "8", "9", "10"], 6);
        check(3, &["0", "7", "10"], 8);
        let error = newest_of(&roles, 2).unwrap_err();
        assert!(matches!(error, Error::ContextLength { prompt: TokenCount::Exact(11), .. }), "{error}");
    }

    #[test]
    fn another_failure_is_returned() {
        let messages =
            [Role::User, Role::Assistant, Role::User].map(|role| Message::new(role, String::new()));
        let failed = newest(&messages, |messages| -> Result<(), Error> {
            Err(match messages.len() {
                3 => Error::ContextLength {
                    param: "messages",
                    prompt: TokenCount::Exact(3),
                    context: 2,
                    of_model: 2,
                },
                _ => Error::Cancelled,
            })
        });
        assert!(matches!(failed, Err(Error::Cancelled)));
    }
}
