//! Facts that write themselves, measured: what is found in talks whose facts are known:
//! `cargo run --release -p haversack-eval --example found_facts -- MODEL [TALKS] [TURNS] [FACTS] [development|held-out]`
//!
//! Each message is a turn of a conversation, answered with one token; then its facts are looked for and added, as a chat
//! does. Prints what was found wrongly and what was missed, then a line of figures:
//!
//! - precision: of what was found, the share that the turn tells;
//! - recall: of what was told, the share that was found;
//! - replaced: of contradicted facts that were held, the share that is not held any more, the later one being held;
//! - lost: facts that were replaced though nothing contradicts them.

use haversack::{ContextSeen, Conversation, Engine};
use haversack_eval::long_talk::TalkSet;
use haversack_eval::stats::median;
use haversack_eval::told_facts::{TellingTurn, telling_talk};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

#[derive(Default)]
struct Tally {
    told: usize,
    found: usize,
    right: usize,
    contradicted: usize,
    replaced: usize,
    lost: usize,
    search_ms: Vec<f64>,
}

/// A fact that was found, and which of the told ones it is.
struct Held {
    number: u64,
    told_in: Option<usize>,
}

fn main() -> Result<(), Failure> {
    let usage = "usage: found_facts MODEL [TALKS] [TURNS] [FACTS] [development|held-out]";
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or(usage)?;
    let mut number = |usual: usize| args.next().map_or(Ok(usual), |n| n.parse::<usize>());
    let (talks, turns, facts) = (number(2)?, number(50)?, number(12)?);
    let set = match args.next().as_deref() {
        None | Some("development") => TalkSet::Development,
        Some("held-out") => TalkSet::HeldOut,
        Some(_) => return Err(usage.into()),
    };
    let engine = Engine::open(model)
        .memory("600M")
        .cache_dir(haversack_eval::folder())
        .start()?;
    let mut tally = Tally::default();
    for talk in 0..talks {
        let conversation = engine.conversation(format!("talk-{talk}")).begin()?;
        tally.hear(&conversation, &telling_talk(set, talk, turns, facts))?;
        conversation.delete()?;
    }
    let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
    println!(
        "turns {}, told {}, found {}, precision {:.3}, recall {:.3}, contradicted {}, replaced {:.3}, lost {}, search ms {:.0}",
        talks * turns,
        tally.told,
        tally.found,
        share(tally.right, tally.found),
        share(tally.right, tally.told),
        tally.contradicted,
        share(tally.replaced, tally.contradicted),
        tally.lost,
        median(&tally.search_ms).unwrap_or_default(),
    );
    Ok(())
}

impl Tally {
    fn hear(&mut self, conversation: &Conversation, talk: &[TellingTurn]) -> Result<(), Failure> {
        let mut held: Vec<Held> = Vec::new();
        for (at, turn) in talk.iter().enumerate() {
            let mut answer = conversation.say(&turn.said).max_tokens(1).send()?;
            answer.text()?;
            let ContextSeen::Turn {
                number: Some(number),
                ..
            } = answer.report().context
            else {
                return Err("a turn has no number".into());
            };
            let start = Instant::now();
            let found = conversation.find_facts(number).run()?;
            self.search_ms.push(start.elapsed().as_secs_f64() * 1e3);
            let told = turn.told.as_ref();
            let was_held = is_held(&held, told.and_then(|told| told.replaces));
            let mut is_found = false;
            for fact in &found {
                let is_right = told.is_some_and(|told| told.is_in(&fact.text)) && !is_found;
                is_found |= is_right;
                self.found += 1;
                self.right += usize::from(is_right);
                if !is_right {
                    println!("wrong: {}", fact.words());
                }
                if let Some(old) = fact.supersedes {
                    let is_meant = |old: &Held| {
                        let replaces = told.and_then(|told| told.replaces);
                        is_right && old.told_in.is_some() && old.told_in == replaces
                    };
                    let old = held.iter().position(|held| held.number == old);
                    let old = old.map(|old| held.remove(old));
                    if !old.as_ref().is_some_and(is_meant) {
                        self.lost += 1;
                        println!("lost for: {}", fact.words());
                    }
                }
                held.push(Held {
                    number: conversation.add_found_fact(fact)?,
                    told_in: is_right.then_some(at),
                });
            }
            let Some(told) = told else { continue };
            self.told += 1;
            if !is_found {
                println!("missed: {}", turn.said);
            }
            if was_held {
                self.contradicted += 1;
                self.replaced += usize::from(is_found && !is_held(&held, told.replaces));
            }
        }
        Ok(())
    }
}

/// Whether a fact that this turn told is held.
fn is_held(held: &[Held], told_in: Option<usize>) -> bool {
    told_in.is_some() && held.iter().any(|held| held.told_in == told_in)
}
