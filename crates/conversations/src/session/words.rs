//! Ranking of turns by their words (BM25), without a model. Pure.
//!
//! A word that few turns have, and that the question has too, is evidence that a turn is about the question. Having no
//! word in common is evidence of nothing: such a turn gets no rank, rather than a low one.
//!
//! Robertson and Zaragoza, *The Probabilistic Relevance Framework: BM25 and Beyond* (2009). A word that more than half of
//! the turns have counts for nothing, and neither does one that only makes the text a question.

use super::stems::{begins_with_pronoun, is_function_word, stem};

/// The usual parameters: how soon repeated words add nothing, and how much a long turn counts less.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// Least score of a turn that has a rank: about that of one word which a third of the turns have.
const SCORE_MIN: f64 = std::f64::consts::LN_2;

/// Least score, as a share of the best.
const SHARE_OF_BEST: f64 = 1.0 / 3.0;

/// Words of a text: hashes, in ascending order. A word that occurs twice is there twice.
pub type WordHashes = Box<[u32]>;

/// The words of a text, whatever their case and their usual endings.
pub fn words_of(text: &str) -> WordHashes {
    let mut hashes = hashes_of(text, |_| true);
    hashes.sort_unstable();
    hashes.into_boxed_slice()
}

/// Stands among the words of a turn that goes on from the one before. It is the hash of no word: words are not empty.
const GOES_ON: u32 = fnv("");

/// The words of a turn, and whether it goes on from the one before.
pub fn words_of_turn(question: &str, answer: &str) -> WordHashes {
    let mut hashes = hashes_of(question, |_| true);
    hashes.extend(hashes_of(answer, |_| true));
    hashes.extend(begins_with_pronoun(question).then_some(GOES_ON));
    hashes.sort_unstable();
    hashes.into_boxed_slice()
}

/// Whether a turn with these words says of somebody what they are called in the one before.
pub(super) fn goes_on(words: &[u32]) -> bool {
    words.binary_search(&GOES_ON).is_ok()
}

/// One number for the words of a text.
pub(super) fn words_hash(words: &[u32]) -> u64 {
    let offset = 0xcbf2_9ce4_8422_2325u64;
    words.iter().fold(offset, |hash, &word| {
        (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Words of a question that are written like names: with a capital letter inside a sentence. In ascending order, each
/// once; none in scripts without capital letters.
pub(super) fn names_of(question: &str) -> Vec<u32> {
    let mut names = Vec::new();
    let mut is_first = true;
    for word in question.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let name = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        // A single letter is a word of every day ("I") or an initial.
        let is_long = name.chars().nth(1).is_some();
        if !is_first && is_long && name.starts_with(char::is_uppercase) {
            names.extend(hashes_of(name, |_| true));
        }
        is_first = word.ends_with(['.', '?', '!', ':', '…']) || (is_first && name.is_empty());
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Of words in lower case that are wanted, in the order of the text.
fn hashes_of(text: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let mut hashes = Vec::new();
    let mut end_word = |word: &mut String| {
        if !word.is_empty() && is_wanted(word) {
            stem(word);
            hashes.push(fnv(word));
        }
        word.clear();
    };
    let mut word = String::new();
    let mut before: Option<char> = None;
    for c in text.chars() {
        if is_written_without_spaces(c) {
            end_word(&mut word);
            // Two neighbours make a word.
            if let Some(before) = before.replace(c) {
                word.extend([before, c]);
                end_word(&mut word);
            }
            continue;
        }
        before = None;
        match c.is_alphanumeric() {
            // By way of the upper case, so that ς and σ are the same.
            true => word.extend(c.to_uppercase().flat_map(char::to_lowercase)),
            false => end_word(&mut word),
        }
    }
    end_word(&mut word);
    hashes
}

/// FNV-1a.
const fn fnv(word: &str) -> u32 {
    let bytes = word.as_bytes();
    let mut hash = 0x811c_9dc5u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

/// Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer.
fn is_written_without_spaces(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        | '\u{3041}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

fn count(words: &[u32], word: u32) -> usize {
    let first = words.partition_point(|&w| w < word);
    words[first..].partition_point(|&w| w == word)
}

/// Names of a question: a bit each.
pub(super) type NameSet = u8;

/// A question with more names than bits is about nobody in particular.
const NAMES_MAX: usize = NameSet::BITS as usize;

/// Statistics of a question's words over all turns, and the scores that follow.
pub(super) struct WordRanking {
    /// Each once.
    question: Vec<u32>,
    /// (word of the question): number of turns that have it.
    having: Vec<u32>,
    /// (word of the question): whether it is written like a name.
    is_name: Vec<bool>,
    turns: u32,
    words: u64,
}

impl WordRanking {
    /// With names apart they are left to [`Self::names_in`], and scores are of the other words.
    pub fn new(question: &str, has_names_apart: bool) -> WordRanking {
        let names = match has_names_apart {
            true => names_of(question),
            false => Vec::new(),
        };
        let mut question = hashes_of(question, |word| !is_function_word(word));
        question.extend(&names);
        question.sort_unstable();
        question.dedup();
        let is_name = question.iter().map(|word| names.contains(word)).collect();
        WordRanking {
            is_name,
            having: vec![0; question.len()],
            question,
            turns: 0,
            words: 0,
        }
    }

    /// Whether the question has words at all.
    pub fn is_empty(&self) -> bool {
        self.question.is_empty()
    }

    /// Counts a turn. All are counted before the first is scored.
    pub fn count(&mut self, words: &[u32]) {
        self.turns += 1;
        self.words += words.len() as u64;
        for (&word, having) in self.question.iter().zip(&mut self.having) {
            *having += u32::from(words.binary_search(&word).is_ok());
        }
    }

    /// What a word of the question, by its place there, says about a turn that has it.
    fn weight(&self, word: usize) -> f64 {
        if self.having[word] == 0 || self.tells_apart(word) {
            return 0.0;
        }
        let (having, turns) = (f64::from(self.having[word]), f64::from(self.turns));
        ((turns - having + 0.5) / (having + 0.5)).ln().max(0.0)
    }

    /// Whether a word of the question is a name that some turns have. What more than a quarter of the turns name tells none
    /// apart.
    fn tells_apart(&self, word: usize) -> bool {
        let having = u64::from(self.having[word]);
        self.is_name[word] && (1..u64::from(self.turns)).contains(&(having * 4))
    }

    /// Whether the question has such a name.
    pub fn has_names(&self) -> bool {
        (0..self.question.len()).any(|word| self.tells_apart(word))
    }

    pub fn score(&self, words: &[u32]) -> f64 {
        let mean = self.words as f64 / f64::from(self.turns.max(1));
        let length = words.len() as f64 / mean.max(1.0);
        let scores = self.question.iter().enumerate().map(|(i, &word)| {
            let weight = self.weight(i);
            if weight == 0.0 {
                return 0.0;
            }
            let count = count(words, word) as f64;
            weight * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length))
        });
        scores.sum()
    }

    /// The names of the question that a turn has.
    pub fn names_in(&self, words: &[u32]) -> NameSet {
        let names = self.question.iter().enumerate();
        let names = names.filter(|&(i, _)| self.tells_apart(i)).take(NAMES_MAX);
        names.enumerate().fold(0, |set, (name, (_, word))| {
            set | NameSet::from(words.binary_search(word).is_ok()) << name
        })
    }

    /// Ranks of turns with these scores, as shares of the score that no turn exceeds; of the best `max` alone, and `None`
    /// where too little speaks for a turn. Of equals the newer; turns come oldest first.
    pub fn ranks(&self, scores: &[f64], max: usize) -> Vec<Option<f32>> {
        let weights = (0..self.question.len()).map(|word| self.weight(word));
        let limit = weights.sum::<f64>() * (K1 + 1.0);
        let best = scores.iter().copied().fold(0.0, f64::max);
        let least = SCORE_MIN.max(best * SHARE_OF_BEST);
        let mut ranked: Vec<usize> = (0..scores.len()).filter(|&i| scores[i] >= least).collect();
        ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(b.cmp(&a)));
        let mut ranks = vec![None; scores.len()];
        for i in ranked.into_iter().take(max) {
            ranks[i] = Some((scores[i] / limit) as f32);
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(question: &str, turns: &[&str], max: usize) -> Vec<Option<f32>> {
        let turns: Vec<WordHashes> = turns.iter().map(|turn| words_of(turn)).collect();
        let mut ranking = WordRanking::new(question, false);
        turns.iter().for_each(|turn| ranking.count(turn));
        let scores: Vec<f64> = turns.iter().map(|turn| ranking.score(turn)).collect();
        ranking.ranks(&scores, max)
    }

    fn ranked(question: &str, turns: &[&str]) -> Vec<usize> {
        let ranks = ranks(question, turns, usize::MAX);
        let mut found: Vec<usize> = (0..turns.len()).filter(|&i| ranks[i].is_some()).collect();
        found.sort_by(|&a, &b| ranks[b].partial_cmp(&ranks[a]).unwrap());
        found
    }

    #[test]
    fn words_in_any_case_and_script() {
        for (a, b) in [
            ("Miso, the CAT's", "miso the cat s"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("Straße", "STRASSE"),
            ("", " - !"),
        ] {
            assert_eq!(words_of(a), words_of(b), "{a}");
        }
        assert_eq!(words_of("a b a").len(), 3);
        // Two characters of a script without spaces make a word, between other words too.
        assert_eq!(words_of("我的猫").len(), 2);
        let (asked, told) = (words_of("猫叫什么"), words_of("x我的猫叫味噌y"));
        assert_eq!(asked.iter().filter(|w| told.contains(w)).count(), 1);
        assert!(told.contains(&words_of("x")[0]) && told.contains(&words_of("y")[0]));
    }

    const TURNS: [&str; 6] = [
        "My cat is called Miso. What a nice name.",
        "What is the weather like? It is fine.",
        "What is the time? It is late.",
        "The garden has seven apple trees. That is a lot.",
        "What is a train? It is fast.",
        "What is a ship? It is slow. The ship is at sea.",
    ];

    #[test]
    fn rare_words_decide_and_common_ones_say_nothing() {
        assert_eq!(ranked("What is my cat called?", &TURNS), [0]);
        assert_eq!(ranked("how many APPLE trees has the garden", &TURNS), [3]);
        // Both have it; one more often.
        assert_eq!(ranked("Is the ship or the cat at sea?", &TURNS)[0], 5);
        assert_eq!(ranked("What is it?", &TURNS), [0; 0]);
        assert_eq!(ranked("zebra", &TURNS), [0; 0]);
        assert_eq!(ranked("", &TURNS), [0; 0]);
        assert_eq!(ranked("cat", &[]), [0; 0]);
    }

    #[test]
    fn ranks_are_shares_and_the_best_few() {
        let turns =
            "red boat, red cat, blue fox, green fox, blue hat, green hat, old gate, new gate";
        let turns: Vec<&str> = turns.split(", ").collect();
        let found = ranks("red boat gate", &turns, 2);
        assert!(found.iter().flatten().all(|&rank| rank > 0.0 && rank < 1.0));
        assert!(found[0] > found[7], "{found:?}");
        // Of equals the newer.
        assert_eq!(found.iter().flatten().count(), 2);
        assert!(found[7].is_some() && found[6].is_none(), "{found:?}");
    }

    #[test]
    fn a_turn_that_goes_on_has_the_same_words() {
        let all = "She rang.\nI see.";
        let one = words_of_turn("She rang.", "I see.");
        assert!(goes_on(&one) && one.len() == words_of(all).len() + 1);
        // What the assistant says of somebody is an answer, and goes on from the question.
        let other = words_of_turn("Nora rang.", "She did?");
        assert!(!goes_on(&other) && !goes_on(&words_of("")));
    }
}
