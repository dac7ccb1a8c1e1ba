//! Which parts of a prompt a policy that evicts rows treats in another way: annotations of its messages. Pure.
//!
//! ```text
//! tokens       <header> system </end> | <header> question </end> <header> answer </end> | <header> question </end> <header>
//! markers      ############################       ###############        ################          ####################
//! whole turns  ########################  one turn                                          the turn under way …
//! ```
//!
//! What is protected (#) stays as far as a layer has room for it (`Protection` of `engine`). Without messages, as in a text that
//! is continued, there are none.

use haversack_cache::Annotation;
use haversack_text::chat::{MessageSpan, Speaker};

/// More than a layer has room to protect, and more turns than stay in memory. Further ones are not annotated: headers
/// compete with other rows then, and the oldest turns leave row by row.
pub const ANNOTATIONS_MAX: usize = 1024;

/// Protects everything but what users, assistants and tools say.
pub fn markers(messages: &[MessageSpan], tokens: u64) -> Vec<Annotation> {
    let mut found = Vec::new();
    let mut from = 0;
    for message in messages.iter().filter(|m| m.speaker != Speaker::System) {
        found.extend(annotation(from, message.content.start as u64, true));
        from = message.content.end as u64;
    }
    if !messages.is_empty() {
        found.extend(annotation(from, tokens, true));
    }
    found.truncate(ANNOTATIONS_MAX);
    found
}

/// Each message of a user begins a turn; the last one is under way and has no end. System messages, and what comes before
/// the first message, are protected.
pub fn whole_turns(messages: &[MessageSpan], tokens: u64) -> Vec<Annotation> {
    // Where something begins, and whether it is protected.
    let mut begins = vec![(0, true)];
    for message in messages {
        let (start, is_system) = (message.start as u64, message.speaker == Speaker::System);
        let is_new = match begins.last() {
            Some(&(_, true)) => !is_system,
            _ => message.speaker != Speaker::Other,
        };
        if is_new {
            begins.push((start, is_system));
        }
    }
    if messages.is_empty() {
        return Vec::new();
    }
    if let Some(&(_, true)) = begins.last() {
        begins.push((tokens, false));
    }
    let ends = begins[1..]
        .iter()
        .map(|&(start, _)| start)
        .chain([u64::MAX]);
    let spans = begins.iter().zip(ends);
    let mut found: Vec<Annotation> = spans
        .filter_map(|(&(start, protected), end)| annotation(start, end, protected))
        .collect();
    let excess = found.len().saturating_sub(ANNOTATIONS_MAX);
    found.drain(1..1 + excess);
    found
}

fn annotation(start: u64, end: u64, protected: bool) -> Option<Annotation> {
    (start < end).then_some(Annotation {
        start,
        end,
        protected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(speaker: Speaker, start: usize, content: std::ops::Range<usize>) -> MessageSpan {
        MessageSpan {
            speaker,
            start,
            content,
        }
    }

    fn spans(found: Vec<Annotation>) -> Vec<(u64, u64, bool)> {
        let plain = |a: &Annotation| (a.start, a.end, a.protected);
        found.iter().map(plain).collect()
    }

    #[test]
    fn what_the_template_and_the_system_message_say_is_protected() {
        use Speaker::{Other, System, User};
        let chat = [
            message(System, 1, 4..40),
            message(User, 42, 45..60),
            message(Other, 62, 65..70),
            message(User, 72, 75..90),
        ];
        let markers = spans(markers(&chat, 95));
        let expected = [(0, 45), (60, 65), (70, 75), (90, 95)];
        assert_eq!(markers, expected.map(|(start, end)| (start, end, true)));
        let turns = spans(whole_turns(&chat, 95));
        assert_eq!(
            turns,
            [(0, 42, true), (42, 72, false), (72, u64::MAX, false)]
        );
        // A system message between turns, one at the end, and none at all.
        let chat = [
            message(User, 0, 3..10),
            message(System, 12, 15..20),
            message(Other, 22, 25..30),
            message(System, 32, 35..40),
        ];
        assert_eq!(
            spans(whole_turns(&chat, 50)),
            [
                (0, 12, false),
                (12, 22, true),
                (22, 32, false),
                (32, 50, true),
                (50, u64::MAX, false)
            ]
        );
        assert_eq!(
            spans(super::markers(&chat, 50)),
            [(0, 3, true), (10, 25, true), (30, 50, true)]
        );
        assert!(super::markers(&[], 50).is_empty() && whole_turns(&[], 50).is_empty());
    }

    #[test]
    fn there_is_a_limit() {
        let chat: Vec<MessageSpan> = (0..5000)
            .map(|i| message(Speaker::User, 10 + 5 * i, 12 + 5 * i..14 + 5 * i))
            .collect();
        let turns = whole_turns(&chat, 25_010);
        assert_eq!(turns.len(), ANNOTATIONS_MAX);
        assert_eq!((turns[0].end, turns[0].protected), (10, true));
        assert_eq!(
            turns.last().map(|a| (a.start, a.end)),
            Some((25_005, u64::MAX))
        );
        assert_eq!(markers(&chat, 25_010).len(), ANNOTATIONS_MAX);
    }
}
