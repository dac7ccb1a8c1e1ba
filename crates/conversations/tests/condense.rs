//! The condenser by itself: any text at all becomes short enough, and nothing that was marked is lost.

use crate::common;

use common::session::Words;
use haversack_conversations::session::Embed;
use haversack_conversations::session::condense::{
    Condense, CondenseError, CondenseMethod, CondensePiece, CondenseRequest, Condensed, Extractive,
    condense, split,
};
use haversack_engine::encoder::{Embedding, EncoderError};
use std::sync::Arc;

/// Fails now and then.
struct Broken;

impl Embed for Broken {
    fn embed(&self, _: &str) -> Result<Embedding, EncoderError> {
        Err(EncoderError::NoDirection)
    }
}

/// A tokenizer for tests: four bytes are a token, and what is said has three more.
fn count(piece: usize, text: &str) -> usize {
    match (piece, text.is_empty()) {
        (0, true) => 1,
        (_, true) => 0,
        _ => text.len().div_ceil(4) + 3,
    }
}

fn piece(text: &str, verbatim: usize) -> CondensePiece {
    CondensePiece {
        text: text.to_owned(),
        verbatim,
    }
}

fn made(
    pieces: &[CondensePiece],
    tokens_max: usize,
    encoder: Option<&dyn Embed>,
) -> Result<Condensed, CondenseError> {
    let asked = CondenseRequest {
        pieces,
        tokens_max,
        count: &count,
    };
    condense(&asked, encoder)
}

#[test]
fn sentences() {
    let cases: [(&str, &[&str]); 10] = [
        ("", &[]),
        (" \n\n ", &[]),
        ("One. Two! Three?", &["One.", "Two!", "Three?"]),
        (
            "Dr. Weber sees J. Miller at 9.30 a.m. on Monday. He is late.",
            &[
                "Dr. Weber sees J. Miller at 9.30 a.m. on Monday.",
                "He is late.",
            ],
        ),
        (
            "Bring:\n- milk\n- bread, e.g. rye\n1. Call Anna.\n2. Sleep",
            &[
                "Bring:",
                "- milk",
                "- bread, e.g. rye",
                "1. Call Anna.",
                "2. Sleep",
            ],
        ),
        (
            "A line that was broken\nin the middle. Next.\n\nA title\nA text",
            &[
                "A line that was broken\nin the middle.",
                "Next.",
                "A title",
                "A text",
            ],
        ),
        (
            "She said \"Stop!\" and left. (Really.) Yes...",
            &["She said \"Stop!\" and left.", "(Really.)", "Yes..."],
        ),
        ("no end at all", &["no end at all"]),
        ("你好。再见！", &["你好。", "再见！"]),
        (
            "See https://a.b/c.d?e=f. Then go.",
            &["See https://a.b/c.d?e=f.", "Then go."],
        ),
    ];
    for (text, expected) in cases {
        let found: Vec<&str> = split(text).into_iter().map(|span| &text[span]).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_was_taken_back_or_said_twice_goes_first() {
    let text = "You are kind. The shop opens at nine. The cat is called Miso. The shop opens at ten. \
        The cat is called Miso. The garden has seven trees.";
    let all = count(0, text);
    for encoder in [None, Some(&Words as &dyn Embed)] {
        let made = made(&[piece(text, 0)], all - 8, encoder).unwrap();
        assert!(!made.pieces[0].contains("nine"), "{made:?}");
        assert!(made.pieces[0].contains("ten"), "{made:?}");
        assert_eq!(made.pieces[0].matches("Miso").count(), 1, "{made:?}");
        assert_eq!(
            (made.summary.kept, made.summary.sentences),
            (4, 6),
            "{made:?}"
        );
    }
    // What was marked stays, and then the other one goes.
    let marked = "The cat is called Miso.";
    let pieces = [piece(text, 0), piece(marked, marked.len())];
    let found = made(&pieces, all, None).unwrap();
    assert!(!found.pieces[0].contains("Miso"));
    assert_eq!(found.pieces[1], marked);
}

#[test]
fn says_how_it_judged() {
    let text = "The boat is called Anna. It was nice. How are you? The bus leaves at 9:40.";
    let how = |encoder| {
        made(&[piece(text, 0)], 18, encoder)
            .unwrap()
            .summary
            .to_string()
    };
    assert!(how(Some(&Words)).ends_with("tokens, by what they are about"));
    let words = "tokens, by their words alone, without an encoder";
    assert!(how(None).ends_with(words) && how(Some(&Broken)).ends_with(words));
    let found = made(&[piece(text, 0)], 18, Some(&Words)).unwrap();
    assert_eq!(
        found.pieces,
        ["The boat is called Anna. The bus leaves at 9:40."]
    );
    assert_eq!(
        made(&[piece(text, 0)], 100, None).unwrap().summary.how,
        CondenseMethod::Untouched
    );
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 16] = [
            "the", "cat", "Anna", "opens", "at", "nine", "42", "Dr.", "ist", "größer", "e.g.",
            "\"so\"", "- item", "名前", "is", "called",
        ];
        const ENDS: [&str; 9] = [". ", "! ", "? ", "\n", ".\n\n", " ", " ", "。", "… "];
        let mut text = String::new();
        for _ in 0..self.roll(60) {
            text.push_str(WORDS[self.roll(16)]);
            text.push_str(if self.roll(4) == 0 {
                ENDS[self.roll(9)]
            } else {
                " "
            });
        }
        text
    }
}

/// Any text at all: within the budget as counted, marked parts word for word, sentences in their order and no others, the
/// same each time, and what fits is not touched.
#[test]
fn any_text_at_all() {
    let mut dice = Dice(11);
    let (mut condensed, mut refused) = (0, 0);
    for round in 0..1500 {
        let pieces: Vec<CondensePiece> = (0..1 + dice.roll(4))
            .map(|_| {
                let text = dice.text();
                let marked = match dice.roll(4) {
                    0 => text.len(),
                    1 => dice.roll(text.len() + 9),
                    _ => 0,
                };
                piece(&text, marked)
            })
            .collect();
        let whole: usize = pieces
            .iter()
            .enumerate()
            .map(|(i, p)| count(i, &p.text))
            .sum();
        let most = dice.roll(whole + 20);
        let encoder = [None, Some(&Words as &dyn Embed)][round % 2];
        let found = made(&pieces, most, encoder);
        assert_eq!(found, made(&pieces, most, encoder), "round {round}");
        // What must stay of each piece.
        let marked: Vec<String> = pieces
            .iter()
            .map(|p| {
                let end = (p.verbatim.min(p.text.len())..)
                    .find(|&i| p.text.is_char_boundary(i))
                    .unwrap();
                p.text[..end].trim().to_owned()
            })
            .collect();
        let found = match found {
            Ok(found) => found,
            Err(CondenseError::Verbatim { tokens, .. }) => {
                let least: usize = marked.iter().enumerate().map(|(i, t)| count(i, t)).sum();
                assert!(least == tokens && least > most, "round {round}");
                refused += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let tokens: usize = found
            .pieces
            .iter()
            .enumerate()
            .map(|(i, t)| count(i, t))
            .sum();
        assert!(
            tokens == found.summary.tokens && tokens <= most,
            "round {round}"
        );
        if whole <= most {
            assert!(found.summary.how == CondenseMethod::Untouched);
            assert!(found.pieces.iter().zip(&pieces).all(|(a, b)| *a == b.text));
            continue;
        }
        condensed += 1;
        for ((left, piece), marked) in found.pieces.iter().zip(&pieces).zip(&marked) {
            assert!(left.starts_with(marked), "round {round}");
            // Every line and sentence is one of the original, further on than the one before.
            let mut rest = &piece.text[..];
            for part in left[marked.len()..].split_whitespace() {
                let at = rest
                    .find(part)
                    .unwrap_or_else(|| panic!("round {round}: {part}"));
                rest = &rest[at + part.len()..];
            }
        }
        // Made short once, it is short.
        let again: Vec<CondensePiece> = found.pieces.iter().map(|t| piece(t, 0)).collect();
        let again = made(&again, most, encoder).unwrap();
        assert_eq!(
            (again.summary.how, &again.pieces),
            (CondenseMethod::Untouched, &found.pieces)
        );
    }
    assert!(condensed > 500 && refused > 50, "{condensed} {refused}");
}

#[test]
fn as_a_trait() {
    let extractive: Arc<dyn Condense> = Arc::new(Extractive {
        encoder: Some(Arc::new(Words)),
    });
    let pieces = [piece("One is here. Two is there.", 0)];
    let asked = CondenseRequest {
        pieces: &pieces,
        tokens_max: 7,
        count: &count,
    };
    assert_eq!(extractive.condense(&asked).unwrap().summary.kept, 1);
}
