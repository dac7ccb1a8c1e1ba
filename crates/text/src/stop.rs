//! Stop strings in a stream of text: what may be shown, and when to end.
//!
//! A stop string may begin in one piece of text and end in another, so text that could still
//! become one is held back, and no more than that. The stop string that is complete first ends
//! the text; of several complete at the same byte, the one that began first. Where the stream was
//! cut into pieces therefore changes nothing.
//!
//! Each stop string is followed by a Knuth-Morris-Pratt automaton: constant work per byte,
//! whatever the strings repeat.

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StopError {
    #[error("a stop string is empty: it would end every text before it begins")]
    Empty,
}

#[derive(Clone, Debug)]
pub struct Stops {
    followed: Vec<Followed>,
    /// The last bytes that came, which may be the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl Stops {
    /// None at all is fine: everything is shown at once.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Stops, StopError> {
        let followed: Vec<Followed> = stops.into_iter().map(|s| Followed::new(s.into())).collect();
        if followed.iter().any(|f| f.text.is_empty()) {
            return Err(StopError::Empty);
        }
        Ok(Stops {
            followed,
            held: String::new(),
            stopped: None,
        })
    }

    /// Takes text and appends what may be shown. True once a stop string is complete; it and all
    /// after it is never shown.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stopped.is_some() {
            return true;
        }
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let mut longest: Option<usize> = None;
            for followed in &mut self.followed {
                followed.step(byte);
                if followed.is_complete() {
                    longest = longest.max(Some(followed.text.len()));
                }
            }
            if let Some(bytes) = longest {
                let ends = |f: &Followed| f.is_complete() && f.text.len() == bytes;
                self.stopped = self.followed.iter().position(ends);
                self.held.push_str(text.get(..=at).unwrap_or_default());
                self.release(bytes, out);
                self.held.clear();
                return true;
            }
        }
        self.held.push_str(text);
        let keep = self.followed.iter().map(|f| f.matched).max().unwrap_or(0);
        self.release(keep, out);
        false
    }

    /// The stream ended by itself: what was held back was no stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<&str> {
        Some(self.followed.get(self.stopped?)?.text.as_str())
    }

    /// Gives out all but the last `keep` bytes. A beginning of a stop string starts with a whole
    /// character, so the cut is between characters.
    fn release(&mut self, keep: usize, out: &mut String) {
        let give = self.held.len().saturating_sub(keep);
        if let Some(text) = self.held.get(..give) {
            out.push_str(text);
            self.held.drain(..give);
        }
    }
}

#[derive(Clone, Debug)]
struct Followed {
    text: String,
    /// `fallback[n]`: the longest proper beginning of the string that ends its first `n + 1`
    /// bytes.
    fallback: Vec<usize>,
    /// How many bytes of the string the stream ends with.
    matched: usize,
}

impl Followed {
    fn new(text: String) -> Followed {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            if bytes[at] == bytes[length] {
                length += 1;
            }
            fallback[at] = length;
        }
        Followed {
            text,
            fallback,
            matched: 0,
        }
    }

    fn step(&mut self, byte: u8) {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched - 1];
        }
        if bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], parts: &[&str]) -> (String, Option<String>) {
        let mut stops = Stops::new(stops.iter().copied()).unwrap();
        let mut out = String::new();
        if !parts.iter().any(|part| stops.push(part, &mut out)) {
            stops.finish(&mut out);
        }
        (out, stops.stopped().map(str::to_string))
    }

    /// The whole text at hand: first completed, then first begun.
    fn naive(stops: &[&str], text: &str) -> (String, Option<String>) {
        let ends = stops
            .iter()
            .filter_map(|s| text.find(s).map(|at| (at + s.len(), at, *s)));
        match ends.min() {
            Some((_, at, stop)) => (text[..at].to_string(), Some(stop.to_string())),
            None => (text.to_string(), None),
        }
    }

    #[test]
    fn a_stop_string_over_a_token_border() {
        assert_eq!(
            run(&["\n\nUser:"], &["Hi.\n", "\nUs", "er", ": more"]),
            ("Hi.".into(), Some("\n\nUser:".into()))
        );
        assert_eq!(
            run(&["\n\nUser:"], &["Hi.\n", "\nUs", "ed"]),
            ("Hi.\n\nUsed".into(), None)
        );
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn only_what_could_stop_is_held() {
        let mut stops = Stops::new(["aab"]).unwrap();
        let mut out = String::new();
        assert!(!stops.push("xaaa", &mut out));
        assert_eq!(out, "xa");
        assert!(stops.push("b", &mut out));
        assert_eq!(out, "xa");
        // Nothing comes after the end.
        assert!(stops.push("more", &mut out));
        stops.finish(&mut out);
        assert_eq!(out, "xa");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert_eq!(Stops::new(["a", ""]).unwrap_err(), StopError::Empty);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "[abé]{0,30}",
            stops in proptest::collection::vec("[abé]{1,5}", 0..4),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let borders: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|c| borders[c.index(borders.len())]).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&stops, &parts), naive(&stops, &text));
        }
    }
}
