//! BLEU-4 as published (Papineni and others, 2002): clipped n-gram precisions up to four, their geometric
//! mean over all texts together, and a penalty for being short. Without smoothing.
//!
//! Counts of one text are kept apart, so that texts can be drawn again for an interval.

use std::collections::HashMap;

/// Longest n-gram.
pub const ORDER: usize = 4;

/// Of one text against one reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuCounts {
    /// (n - 1): n-grams that the reference has too, each as often as there.
    pub matched: [u64; ORDER],
    /// (n - 1): n-grams.
    pub all: [u64; ORDER],
    pub words: u64,
    pub reference_words: u64,
}

impl BleuCounts {
    pub fn of(text: &str, reference: &str) -> BleuCounts {
        let (words, truth) = (words(text), words(reference));
        let mut counts = BleuCounts {
            words: words.len() as u64,
            reference_words: truth.len() as u64,
            ..BleuCounts::default()
        };
        for n in 1..=ORDER {
            let mut left: HashMap<&[String], u64> = HashMap::new();
            for gram in truth.windows(n) {
                *left.entry(gram).or_default() += 1;
            }
            for gram in words.windows(n) {
                counts.all[n - 1] += 1;
                if let Some(left) = left.get_mut(gram).filter(|left| **left > 0) {
                    *left -= 1;
                    counts.matched[n - 1] += 1;
                }
            }
        }
        counts
    }

    pub fn add(&mut self, other: &BleuCounts) {
        for n in 0..ORDER {
            self.matched[n] += other.matched[n];
            self.all[n] += other.all[n];
        }
        self.words += other.words;
        self.reference_words += other.reference_words;
    }

    /// From 0 to 1.
    pub fn bleu(&self) -> f64 {
        if self.matched.contains(&0) {
            return 0.0;
        }
        let logs = self.matched.iter().zip(&self.all);
        let logs = logs.map(|(&matched, &all)| (matched as f64 / all as f64).ln());
        let mean = logs.sum::<f64>() / ORDER as f64;
        let short = 1.0 - self.reference_words as f64 / self.words as f64;
        (mean + short.min(0.0)).exp()
    }
}

/// Runs of letters and digits; every other sign that is no space stands alone.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = run.trim_end_matches(|c: char| !c.is_alphanumeric());
        let sign = run[word.len()..].trim();
        let parts = [word, sign].into_iter().filter(|part| !part.is_empty());
        words.extend(parts.map(str::to_owned));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_signs() {
        assert_eq!(words("It's 4, no?"), ["It", "'", "s", "4", ",", "no", "?"]);
    }

    #[test]
    fn known_values() {
        let bleu = |text: &str, truth: &str| BleuCounts::of(text, truth).bleu();
        assert_eq!(bleu("a b c d e", "a b c d e"), 1.0);
        assert_eq!(bleu("", "a b c d"), 0.0);
        assert_eq!(bleu("a b c", "a b c"), 0.0, "no four words");
        // The published example of clipping: "the" seven times, twice in the reference.
        let counts = BleuCounts::of("the the the the the the the", "the cat is on the mat");
        assert_eq!((counts.matched[0], counts.all[0]), (2, 7));
        // 5/6, 3/5, 2/4, 1/3 of the n-grams, nothing short.
        let found = bleu("a b c d x f", "a b c d e f");
        let expected = (5.0 / 6.0 * 3.0 / 5.0 * 2.0 / 4.0 * 1.0 / 3.0f64).powf(0.25);
        assert!((found - expected).abs() < 1e-12, "{found}");
        // All there, but 4 words of 8: exp(1 - 8/4).
        let found = bleu("a b c d", "a b c d e f g h");
        assert!((found - (-1f64).exp()).abs() < 1e-12, "{found}");
    }

    #[test]
    fn a_corpus_is_not_a_mean() {
        let mut both = BleuCounts::of("a b c d", "a b c d");
        both.add(&BleuCounts::of("x y z w", "a b c d"));
        assert!((both.bleu() - 0.5).abs() < 1e-12);
    }
}
