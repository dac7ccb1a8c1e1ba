//! Which turns a question is shown, and whether its evidence is among them:
//! `cargo run --release -p haversack-eval --example coverage -- ENCODER_DIR [TALKS] [development|held-out]`
//!
//! No language model runs. Prints a line for each way to choose turns and each capacity: the share of questions with all
//! evidence shown, of those that one turn answers, of each kind, and the tokens of the turns shown.

use haversack_engine::encoder::{Embedding, Encoder, EncoderOptions, StoredEmbedding};
use haversack_eval::coverage::{ANSWER_TOKENS, Coverage, ShownTurns, estimated_tokens};
use haversack_eval::long_talk::{Hardness, LongQuestion, LongTalk, TURNS, TalkSet, long_talk};

type Failure = Box<dyn std::error::Error>;

const CAPACITIES: [u64; 2] = [1536, 3072];

/// Ways to choose turns.
const CONTENDERS: [(&str, Chooser); 4] = [
    ("window", |talk, _| {
        (0..talk.embeddings.len()).rev().collect()
    }),
    ("encoder, eight", |talk, asked| {
        by_encoder(talk, asked).into_iter().take(8).collect()
    }),
    ("encoder", by_encoder),
    ("oracle", |_, asked| asked.question.evidence.clone()),
];

/// The order in which turns are shown while there is room.
type Chooser = fn(&EmbeddedTalk, &EmbeddedQuestion<'_>) -> Vec<usize>;

struct EmbeddedTalk {
    embeddings: Vec<StoredEmbedding>,
}

struct EmbeddedQuestion<'a> {
    question: &'a LongQuestion,
    embedding: Embedding,
}

impl EmbeddedTalk {
    fn new(talk: &LongTalk, encoder: &Encoder) -> Result<EmbeddedTalk, Failure> {
        let mut embedded = EmbeddedTalk {
            embeddings: Vec::new(),
        };
        for (said, answered) in &talk.turns {
            // As a session embeds a turn.
            let text = format!("{said}\n{answered}");
            embedded.embeddings.push(encoder.embed(&text)?.store());
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
    let question = asked.embedding.store();
    let turns = talk.embeddings.iter();
    best_first(
        &turns
            .map(|turn| turn.similarity(&question))
            .collect::<Vec<_>>(),
    )
}

fn main() -> Result<(), Failure> {
    let usage = "usage: coverage ENCODER_DIR [TALKS] [development|held-out]";
    let mut args = std::env::args().skip(1);
    let encoder = args.next().ok_or(usage)?;
    let encoder = Encoder::open(encoder.as_ref(), &EncoderOptions::default())?;
    let talks: usize = args.next().map_or(Ok(4), |n| n.parse())?;
    let set = match args.next().as_deref() {
        None | Some("development") => TalkSet::Development,
        Some("held-out") => TalkSet::HeldOut,
        Some(_) => return Err(usage.into()),
    };
    let mut found = vec![[const { None::<Coverage> }; CAPACITIES.len()]; CONTENDERS.len()];
    for number in 0..talks {
        let talk = long_talk(set, number, TURNS, &[]);
        let embedded = EmbeddedTalk::new(&talk, &encoder)?;
        let tokens = estimated_tokens(&talk);
        for question in &talk.asked {
            let asked = EmbeddedQuestion {
                question,
                embedding: encoder.embed(&question.question)?,
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
        eprint!("\r{}/{talks}", number + 1);
    }
    eprintln!();
    let kinds = Hardness::ALL
        .into_iter()
        .filter(|&kind| kind != Hardness::Never);
    let kinds: Vec<Hardness> = kinds.collect();
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
