//! WordPiece, as BERT's uncased models have it: from text to the ids of pieces.
//!
//! ```text
//! text   "Déjà-vu,  no?"
//! fold    deja-vu,  no?        controls and accents away, lower case, ideographs alone
//! words   deja - vu , no ?     at white space, and every punctuation mark is a word
//! pieces  dej ##a - vu , no ?  the longest piece that fits, then the longest that goes on
//! ```
//!
//! The vocabulary is a text file, a piece per line in the order of ids. What else the model's
//! `tokenizer.json` says (fold case, strip accents, `##`, 100 characters) is the same for every model
//! that runs here and stands below as constants, so that file is not read.
//!
//! `[SEP]` in a sentence is three words, never the special piece. Categories are those of the Unicode version of our
//! table, which is newer than that of some other implementations.
//!
//! Accents are stripped by a table of what is left of a character when its canonical decomposition
//! has lost its nonspacing marks (`bases.txt`: the character and its rest, sorted, a line for each);
//! syllables of Hangul are decomposed by their arithmetic. Marks are not put into canonical order:
//! those that would move are nonspacing, and gone.

use super::error::EncoderFileError;
use haversack_text::tokenizer::pieces::Pieces;
use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Ten times the largest vocabulary known; that of the encoder has 226 KiB.
const VOCAB_BYTES_MAX: usize = 16 << 20;
/// Longer words are unknown as a whole.
const WORD_CHARS_MAX: usize = 100;
/// Prefix of pieces that continue a word.
const GOES_ON: &str = "##";

const BASES: &str = include_str!("bases.txt");

/// The vocabulary and the three special pieces that are used.
pub struct WordPiece {
    pieces: Pieces,
    unknown: u32,
    first: u32,
    last: u32,
}

impl WordPiece {
    /// From the bytes of a `vocab.txt`; the weights have vectors for `vectors` pieces.
    pub fn from_vocab(bytes: &[u8], vectors: usize) -> Result<WordPiece, EncoderFileError> {
        let refused = |why: String| Err(EncoderFileError(why));
        let len = bytes.len();
        if len > VOCAB_BYTES_MAX {
            return refused(format!(
                "{len} bytes of vocabulary; accepted: at most {VOCAB_BYTES_MAX}"
            ));
        }
        let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let lines = lines.split(|b| *b == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let pieces = Pieces::new(lines).map_err(|error| EncoderFileError(error.to_string()))?;
        let special = |piece: &str| {
            let found = pieces.find(piece.as_bytes());
            found.ok_or_else(|| EncoderFileError(format!("there is no piece {piece}")))
        };
        let (unknown, first, last) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        let count = pieces.len();
        if count != vectors {
            return refused(format!(
                "{count} pieces, but the weights have vectors for {vectors}"
            ));
        }
        Ok(WordPiece {
            pieces,
            unknown,
            first,
            last,
        })
    }

    pub fn heap_bytes(&self) -> usize {
        self.pieces.heap_bytes()
    }

    /// The ids of a text between the first and the last special piece, cut so that there are at most
    /// `ids_max` (never fewer than those two). Linear in the text; what lies behind the cut is not read.
    pub fn encode(&self, text: &str, ids_max: usize) -> Vec<u32> {
        let mut ids = Ids {
            list: vec![self.first],
            max: ids_max.saturating_sub(1),
        };
        let mut word = Word::default();
        'text: for c in text.chars() {
            let mut cut = false;
            fold(c, &mut |c| match kind(c) {
                Kind::Space => cut |= self.end_word(&mut word, &mut ids),
                Kind::Alone => {
                    cut |= self.end_word(&mut word, &mut ids);
                    word.push(c);
                    cut |= self.end_word(&mut word, &mut ids);
                }
                Kind::Inside => word.push(c),
            });
            if cut {
                break 'text;
            }
        }
        self.end_word(&mut word, &mut ids);
        ids.list.push(self.last);
        ids.list
    }

    /// Adds the pieces of the word and clears it; true when there is no room for more.
    fn end_word(&self, word: &mut Word, ids: &mut Ids) -> bool {
        if word.chars > WORD_CHARS_MAX {
            ids.push(self.unknown);
        } else if word.chars > 0 {
            let before = ids.list.len();
            if !self.split(&word.text, ids) {
                ids.list.truncate(before);
                ids.push(self.unknown);
            }
        }
        word.clear();
        ids.list.len() >= ids.max
    }

    /// False when some part of the word begins no piece.
    fn split(&self, word: &str, ids: &mut Ids) -> bool {
        let mut rest = word;
        // The part that is looked up, with the prefix of a continuation.
        let mut part = String::new();
        while !rest.is_empty() {
            part.clear();
            if rest.len() < word.len() {
                part.push_str(GOES_ON);
            }
            let lead = part.len();
            part.push_str(rest);
            let found = loop {
                if let Some(id) = self.pieces.find(part.as_bytes()) {
                    break id;
                }
                part.pop();
                if part.len() <= lead {
                    return false;
                }
            };
            rest = &rest[part.len() - lead..];
            ids.push(found);
        }
        true
    }
}

/// Ids, `max` at most.
struct Ids {
    list: Vec<u32>,
    max: usize,
}

impl Ids {
    fn push(&mut self, id: u32) {
        if self.list.len() < self.max {
            self.list.push(id);
        }
    }
}

/// The word being read; past the maximal length its characters are only counted.
#[derive(Default)]
struct Word {
    text: String,
    chars: usize,
}

impl Word {
    fn push(&mut self, c: char) {
        self.chars = self.chars.saturating_add(1);
        if self.chars <= WORD_CHARS_MAX {
            self.text.push(c);
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.chars = 0;
    }
}

enum Kind {
    Space,
    /// A word of its own.
    Alone,
    Inside,
}

fn kind(c: char) -> Kind {
    if c.is_whitespace() {
        Kind::Space
    } else if c.is_ascii_punctuation() || is_punctuation(c) {
        Kind::Alone
    } else {
        Kind::Inside
    }
}

fn is_punctuation(c: char) -> bool {
    !c.is_ascii()
        && matches!(
            get_general_category(c),
            G::ConnectorPunctuation
                | G::DashPunctuation
                | G::OpenPunctuation
                | G::ClosePunctuation
                | G::InitialPunctuation
                | G::FinalPunctuation
                | G::OtherPunctuation
        )
}

/// Calls `out` with the folded form of a character: nothing, itself, its base in lower case, or itself
/// between spaces.
fn fold(c: char, out: &mut impl FnMut(char)) {
    if c.is_ascii() {
        match c {
            '\t' | '\n' | '\r' => out(' '),
            c if c.is_ascii_control() => (),
            c => out(c.to_ascii_lowercase()),
        }
        return;
    }
    if c == char::REPLACEMENT_CHARACTER {
        return;
    }
    match get_general_category(c) {
        G::Control | G::Format | G::PrivateUse | G::Surrogate | G::NonspacingMark => return,
        _ if c.is_whitespace() => return out(' '),
        _ => (),
    }
    let alone = is_ideograph(c);
    if alone {
        out(' ');
    }
    decompose(c, &mut |c| c.to_lowercase().for_each(&mut *out));
    if alone {
        out(' ');
    }
}

/// The blocks of ideographs that BERT treats as words; kana and Hangul are not among them.
fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x3400..=0x4dbf
        | 0x4e00..=0x9fff
        | 0xf900..=0xfaff
        | 0x20000..=0x2a6df
        | 0x2a700..=0x2ceaf
        | 0x2f800..=0x2fa1f)
}

/// The canonical decomposition without nonspacing marks.
fn decompose(c: char, out: &mut impl FnMut(char)) {
    /// Hangul: 19 leading letters, 21 vowels, 27 trailing letters and none.
    const SYLLABLES: u32 = 0xac00;
    const VOWELS: u32 = 21;
    const TRAILS: u32 = 28;
    if ('\u{ac00}'..='\u{d7a3}').contains(&c) {
        let syllable = u32::from(c) - SYLLABLES;
        let (lead, vowel) = (syllable / (VOWELS * TRAILS), syllable / TRAILS % VOWELS);
        let trail = syllable % TRAILS;
        let letters = [0x1100 + lead, 0x1161 + vowel, 0x11a7 + trail];
        let letters = &letters[..if trail == 0 { 2 } else { 3 }];
        let letters = letters.iter().copied();
        return letters.filter_map(char::from_u32).for_each(out);
    }
    match base(c) {
        Some(rest) => rest.chars().for_each(out),
        None => out(c),
    }
}

/// The line of a character in the table, without the character. Sorted UTF-8 is sorted characters,
/// so a line is found by halving.
fn base(c: char) -> Option<&'static str> {
    let (mut low, mut high) = (0, BASES.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let bytes = BASES.as_bytes();
        let before = bytes[..middle].iter().rposition(|b| *b == b'\n');
        let start = before.map_or(0, |at| at + 1);
        let end = start + bytes[start..].iter().position(|b| *b == b'\n')?;
        let line = &BASES[start..end];
        let first = line.chars().next()?;
        match first.cmp(&c) {
            std::cmp::Ordering::Equal => return Some(&line[first.len_utf8()..]),
            std::cmp::Ordering::Less => low = end + 1,
            std::cmp::Ordering::Greater => high = start,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_found() {
        let mut before = '\0';
        for line in BASES.lines() {
            let c = line.chars().next().unwrap();
            assert!(before < c, "{c} is out of order");
            before = c;
            assert_eq!(base(c), Some(&line[c.len_utf8()..]), "{c}");
        }
        for c in ['a', 'ß', '\u{10ffff}', '\u{80}', 'ø', '中'] {
            assert_eq!(base(c), None, "{c}");
        }
    }

    fn folded(text: &str) -> String {
        let mut out = String::new();
        text.chars().for_each(|c| fold(c, &mut |c| out.push(c)));
        out
    }

    #[test]
    fn text_is_folded() {
        for (text, expected) in [
            ("Déjà\u{301} VU", "deja vu"),
            ("a\u{0}b\u{fffd}c\u{7}d\u{200b}e\u{ad}f", "abcdef"),
            ("x\ty\u{a0}z\u{3000}", "x y z "),
            ("東京Tower", " 東  京 tower"),
            ("한글", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}"),
            ("İstanbul ẞ Σ", "istanbul ß σ"),
        ] {
            assert_eq!(folded(text), expected);
        }
    }

    fn small() -> WordPiece {
        let vocab = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\n##a\na\n,\n";
        WordPiece::from_vocab(vocab, 10).unwrap()
    }

    #[test]
    fn the_longest_piece_wins() {
        let pieces = small();
        assert_eq!(pieces.encode("unaffable, A", 99), [2, 4, 5, 6, 9, 8, 3]);
        assert_eq!(pieces.encode("unaffected", 99), [2, 1, 3]);
        assert_eq!(pieces.encode("", 99), [2, 3]);
        assert_eq!(pieces.encode("[SEP] ##a", 99), [2, 1, 1, 1, 1, 1, 8, 3]);
    }

    #[test]
    fn a_cut_text_still_ends_as_it_should() {
        let pieces = small();
        for max in 0..9 {
            let ids = pieces.encode(&"unaffable ".repeat(3), max);
            assert_eq!(ids.len(), max.max(2));
            assert_eq!((ids[0], ids[ids.len() - 1]), (2, 3));
        }
    }

    #[test]
    fn long_words_are_unknown_as_a_whole() {
        let pieces = small();
        let word = |n: usize| pieces.encode(&format!("un{}", "a".repeat(n - 2)), 200);
        assert_eq!(word(100).len(), 2 + 99);
        assert_eq!(word(101), [2, 1, 3]);
    }

    #[test]
    fn a_vocabulary_needs_its_special_pieces() {
        for (bytes, what) in [
            (&b""[..], "[UNK]"),
            (b"[UNK]\n[SEP]", "[CLS]"),
            (b"[UNK]\r\n[CLS]\r\n", "[SEP]"),
        ] {
            let e = WordPiece::from_vocab(bytes, 3).err().unwrap();
            assert_eq!(e.to_string(), format!("there is no piece {what}"));
        }
        let e = WordPiece::from_vocab(&vec![b'\n'; VOCAB_BYTES_MAX + 1], 3)
            .err()
            .unwrap();
        assert!(e.to_string().contains("16777217"), "{e}");
    }
}
