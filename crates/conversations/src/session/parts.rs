//! Cuts a message that is too long to be read whole into parts, at the ends of sentences where it can.

use super::condense::split;
use super::error::SessionResult;
use super::layout::ChatLayout;
use super::limits::SessionLimits;
use haversack_text::tokenizer::EncodeOptions;
use std::collections::VecDeque;
use std::ops::Range;

/// The parts that a message is read in: one, unless it does not fit `room` tokens with the `beside` tokens that follow it.
pub(super) fn message_parts(
    layout: &ChatLayout,
    text: &str,
    limits: &SessionLimits,
    room: usize,
    beside: usize,
) -> SessionResult<VecDeque<String>> {
    if layout.question(text)?.len().saturating_add(beside) <= room {
        return Ok(VecDeque::from([text.to_owned()]));
    }
    let marks = layout.question("a")?.len().max(layout.fact("a")?.len());
    let max = limits.part_max.saturating_sub(marks).max(1);
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let tokenizer = layout.model().tokenizer();
    let count = |text: &str| {
        let tokens = tokenizer.encode(text, plain);
        tokens.map_or(usize::MAX, |tokens| tokens.len())
    };
    Ok(parts(text, max, &count).into())
}

/// Consecutive parts of a text, each of at most `tokens_max` tokens as `count` counts them, if single characters are. All
/// of its words are in one of them, in order.
fn parts(text: &str, tokens_max: usize, count: &dyn Fn(&str) -> usize) -> Vec<String> {
    let mut parts = Vec::new();
    let (mut open, mut tokens): (Range<usize>, usize) = (0..0, 0);
    for piece in pieces(text, tokens_max, count) {
        let more = count(&text[piece.clone()]);
        if !open.is_empty() && tokens + more > tokens_max {
            parts.push(text[open.clone()].to_owned());
            (open, tokens) = (piece.start..piece.start, 0);
        }
        open = match open.is_empty() {
            true => piece,
            false => open.start..piece.end,
        };
        tokens += more;
    }
    if !open.is_empty() {
        parts.push(text[open].to_owned());
    }
    parts
}

/// Sentences with what follows them up to the next, those that are too long in halves.
fn pieces(text: &str, tokens_max: usize, count: &dyn Fn(&str) -> usize) -> Vec<Range<usize>> {
    let sentences = split(text);
    let starts = sentences.iter().skip(1).map(|sentence| sentence.start);
    let mut from = 0;
    let mut stack: Vec<Range<usize>> = Vec::new();
    for end in starts.chain([text.len()]) {
        stack.push(from..end);
        from = end;
    }
    stack.reverse();
    let mut pieces = Vec::new();
    while let Some(piece) = stack.pop() {
        match halve(&text[piece.clone()]) {
            Some(middle) if count(&text[piece.clone()]) > tokens_max => {
                let middle = piece.start + middle;
                stack.push(middle..piece.end);
                stack.push(piece.start..middle);
            }
            _ if piece.is_empty() => {}
            _ => pieces.push(piece),
        }
    }
    pieces
}

/// Where to cut a text in two: behind the white space nearest to its middle, or between two characters.
fn halve(text: &str) -> Option<usize> {
    let middle = text.len() / 2;
    let spaces = text
        .char_indices()
        .filter(|(_, c)| c.is_whitespace())
        .map(|(at, c)| at + c.len_utf8());
    let space = spaces
        .filter(|&at| at < text.len())
        .min_by_key(|at| at.abs_diff(middle));
    let mut between = (1..text.len()).filter(|&at| text.is_char_boundary(at));
    space.or_else(|| between.find(|&at| at >= middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn parts_are_whole_sentences_within_the_limit() {
        let text = "One two three. Four five.\n\nSix seven eight nine ten. Eleven.";
        let found = parts(text, 6, &words);
        assert_eq!(
            found,
            [
                "One two three. Four five.\n\n",
                "Six seven eight nine ten. Eleven."
            ]
        );
        assert_eq!(found.concat(), text);
    }

    #[test]
    fn long_sentences_and_long_words_are_cut() {
        let text = "word ".repeat(100) + &"x".repeat(50);
        let bytes = |text: &str| text.len();
        let found = parts(&text, 40, &bytes);
        assert_eq!(found.concat(), text);
        assert!(found.iter().all(|part| part.len() <= 40), "{found:?}");
        let text = "äöü€".repeat(30);
        let found = parts(&text, 10, &bytes);
        assert_eq!(found.concat(), text);
        assert!(found.iter().all(|part| part.len() <= 10));
        assert_eq!(parts("", 10, &bytes), [""; 0]);
        assert_eq!(parts("€", 1, &bytes), ["€"]);
    }
}
