//! Which turns a question is shown, and whether its evidence is among them:
//! `cargo run --release -p haversack-eval --example coverage -- ENCODER_DIR [TALKS [development|held-out] | FILE.json]`
//!
//! No language model runs. Prints a line for each way to choose turns and each capacity: the share of questions with all
//! evidence shown, of those that one turn answers, of each kind, and the tokens of the turns shown.

mod talk_file;

use haversack_conversations::session::relevance::Relevance;
use haversack_conversations::session::words::{WordHashes, words_of_turn};
use haversack_conversations::session::{QuestionEmbedding, RankedQuestion, scoring};
use haversack_engine::encoder::{Encoder, EncoderOptions, StoredEmbedding};
use haversack_eval::coverage::{ANSWER_TOKENS, Coverage, ShownTurns, estimated_tokens};
use haversack_eval::long_talk::{Hardness, LongQuestion, LongTalk, TURNS, TalkSet, long_talk};
use std::borrow::Cow;

type Failure = Box<dyn std::error::Error>;

const CAPACITIES: [u64; 2] = [1536, 3072];

/// Ways to choose turns.
const CONTENDERS: [(&str, Chooser); 6] = [
    ("window", |talk, _| {
        (0..talk.embeddings.len()).rev().collect()
    }),
    ("encoder, eight", |talk, asked| {
        by_encoder(talk, asked).into_iter().take(8).collect()
    }),
    ("encoder", by_encoder),
    ("session, eight", |talk, asked| {
        by_session(talk, asked).into_iter().take(8).collect()
    }),
    ("session", by_session),
    ("oracle", |_, asked| asked.question.evidence.clone()),
];

/// The order in which turns are shown while there is room.
type Chooser = fn(&EmbeddedTalk, &EmbeddedQuestion<'_>) -> Vec<usize>;

struct EmbeddedTalk {
    embeddings: Vec<StoredEmbedding>,
    words: Vec<WordHashes>,
}

struct EmbeddedQuestion<'a> {
    question: &'a LongQuestion,
    embedding: QuestionEmbedding,
}

impl EmbeddedTalk {
    fn new(talk: &LongTalk, encoder: &Encoder) -> Result<EmbeddedTalk, Failure> {
        let mut embedded = EmbeddedTalk {
            embeddings: Vec::new(),
            words: Vec::new(),
        };
        for (said, answered) in &talk.turns {
            // As a session embeds a turn.
            let text = format!("{said}\n{answered}");
            embedded.embeddings.push(encoder.embed(&text)?.store());
            embedded.words.push(words_of_turn(said, answered));
        }
        Ok(embedded)
    }
}

fn best_first(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(b.cmp(&a)));
    order
}

fn by_encoder(talk: &EmbeddedTalk, asked: &EmbeddedQuestion<'_>) -> Vec<usize> {
    let question = asked.embedding.whole().store();
    let turns = talk.embeddings.iter();
    best_first(
        &turns
            .map(|turn| turn.similarity(&question))
            .collect::<Vec<_>>(),
    )
}

/// As a session ranks them.
fn by_session(talk: &EmbeddedTalk, asked: &EmbeddedQuestion<'_>) -> Vec<usize> {
    let question = RankedQuestion {
        text: &asked.question.question,
        embedding: Some(&asked.embedding),
    };
    let ranks = scoring::ranks(
        &question,
        Relevance::default(),
        talk.embeddings.len(),
        &|i| Some(talk.embeddings[i]),
        &|i| Cow::Borrowed(&talk.words[i]),
    );
    let scores = ranks
        .iter()
        .map(|rank| rank.map_or(f32::MIN, |rank| rank.similarity));
    best_first(&scores.collect::<Vec<_>>())
}

fn main() -> Result<(), Failure> {
    let usage = "usage: coverage ENCODER_DIR [TALKS [development|held-out] | FILE.json]";
    let mut args = std::env::args().skip(1);
    let encoder = args.next().ok_or(usage)?;
    let encoder = Encoder::open(encoder.as_ref(), &EncoderOptions::default())?;
    let which = args.next().unwrap_or_else(|| "4".into());
    let set = match args.next().as_deref() {
        None | Some("development") => TalkSet::Development,
        Some("held-out") => TalkSet::HeldOut,
        Some(_) => return Err(usage.into()),
    };
    let (talks, kinds) = match which.strip_suffix(".json") {
        Some(_) => {
            let talks = talk_file::talks_of(&std::fs::read_to_string(&which)?)?;
            let talks = talks.into_iter().map(|(talk, _)| talk);
            (talks.collect::<Vec<LongTalk>>(), Vec::new())
        }
        None => {
            let numbers = 0..which.parse().map_err(|_| usage)?;
            let talks = numbers.map(|number| long_talk(set, number, TURNS, &[]));
            let kinds = Hardness::ALL.into_iter();
            let kinds = kinds.filter(|&kind| kind != Hardness::Never);
            (talks.collect(), kinds.collect())
        }
    };
    let mut found = vec![[const { None::<Coverage> }; CAPACITIES.len()]; CONTENDERS.len()];
    for (number, talk) in talks.iter().enumerate() {
        let embedded = EmbeddedTalk::new(talk, &encoder)?;
        let tokens = estimated_tokens(talk);
        for question in &talk.asked {
            let asked = EmbeddedQuestion {
                question,
                embedding: QuestionEmbedding::new(&encoder, &question.question)?,
            };
            for ((_, choose), found) in CONTENDERS.iter().zip(&mut found) {
                let order = choose(&embedded, &asked);
                for (capacity, coverage) in CAPACITIES.iter().zip(found) {
                    let room = capacity - ANSWER_TOKENS;
                    let shown = ShownTurns::fill(order.iter().copied(), &tokens, room);
                    coverage.get_or_insert_default().add(question, &shown);
                }
            }
        }
        eprint!("\r{}/{}", number + 1, talks.len());
    }
    eprintln!();
    print!(
        "{:16} {:>8} {:>7} {:>7} {:>7}",
        "turns by", "capacity", "shown", "all", "single"
    );
    kinds.iter().for_each(|kind| print!(" {:>10}", kind.name()));
    println!();
    for ((name, _), found) in CONTENDERS.iter().zip(&found) {
        for (capacity, coverage) in CAPACITIES.iter().zip(found) {
            let Some(coverage) = coverage else { continue };
            let (all, single) = (coverage.all.percent(), coverage.single.percent());
            print!(
                "{name:16} {capacity:8} {:7} {all:7.1} {single:7.1}",
                coverage.mean_tokens()
            );
            for &kind in &kinds {
                print!(" {:10.1}", coverage.of(kind).percent());
            }
            println!();
        }
    }
    Ok(())
}
