//! Facts that write themselves, measured: what is found in talks whose facts are known:
//! `cargo run --release -p haversack-eval --example found_facts -- MODEL [TALKS] [TURNS] [FACTS] [development|held-out]`
//!
//! Each message is a turn of a conversation, answered with one token; then its facts are looked for and added, as a chat
//! does. Prints what was found wrongly and what was missed, then a line of figures:
//!
//! - precision: of what was found, the share that the turn tells;
//! - recall: of what was told, the share that was found;
//! - replaced: of contradicted facts that were held, the share that is not held any more, the later one being held;
//! - lost: facts that were replaced though nothing contradicts them;
//! - answered: of questions about what was told and still holds, the share whose answer has it. The file of the conversation
//!   has a quota, and no turn that it still has is shown: what is answered comes from facts. `held` is the same for what was
//!   found.

use haversack::session::SessionSettings;
use haversack::{ContextSeen, Conversation, Engine};
use haversack_eval::long_talk::TalkSet;
use haversack_eval::stats::median;
use haversack_eval::told_facts::{TellingTurn, telling_talk};
use std::time::Instant;

/// Of the file of a conversation: room for the texts of some tens of turns, and for no rows.
const QUOTA_BYTES: u64 = 64 << 10;
const ANSWER_TOKENS: usize = 48;

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
    /// Tokens of turns that left the file.
    forgotten: u64,
    asked: usize,
    answered: usize,
    asked_held: usize,
    answered_held: usize,
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
        let settings = SessionSettings {
            quota_bytes: Some(QUOTA_BYTES),
            ..SessionSettings::default()
        };
        let name = format!("talk-{talk}");
        let conversation = engine.conversation(name).settings(settings).begin()?;
        let talk = telling_talk(set, talk, turns, facts);
        let held = tally.hear(&conversation, &talk)?;
        tally.ask(&conversation, &talk, &held)?;
        conversation.delete()?;
    }
    let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
    println!(
        "asked {}, answered {:.3}, of {} held {:.3}, tokens forgotten {}",
        tally.asked,
        share(tally.answered, tally.asked),
        tally.asked_held,
        share(tally.answered_held, tally.asked_held),
        tally.forgotten,
    );
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
    /// Returns what is held at the end.
    fn hear(
        &mut self,
        conversation: &Conversation,
        talk: &[TellingTurn],
    ) -> Result<Vec<Held>, Failure> {
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
        Ok(held)
    }

    /// Asks about everything that was told and still holds, with all turns out of sight.
    fn ask(
        &mut self,
        conversation: &Conversation,
        talk: &[TellingTurn],
        held: &[Held],
    ) -> Result<(), Failure> {
        self.forgotten += conversation.stats()?.forgotten;
        for turn in conversation.turns()? {
            conversation.exclude(turn.turn.number)?;
        }
        for (at, turn) in talk.iter().enumerate() {
            let Some(told) = &turn.told else { continue };
            let is_later = |later: &TellingTurn| {
                let later = later.told.as_ref();
                later.is_some_and(|later| later.replaces == Some(at))
            };
            if talk.iter().any(is_later) {
                continue;
            }
            let answer = conversation.say(&told.question).temperature(0.0);
            let answer = answer.max_tokens(ANSWER_TOKENS).run()?;
            conversation.retract()?;
            let value = told.words[0].to_lowercase();
            let is_right = usize::from(answer.to_lowercase().contains(&value));
            let is_held = usize::from(is_held(held, Some(at)));
            self.asked += 1;
            self.answered += is_right;
            self.asked_held += is_held;
            self.answered_held += is_right * is_held;
            if is_right == 0 {
                println!(
                    "asked: {} {answer:?}, not {value}, held {is_held}",
                    told.question
                );
            }
        }
        Ok(())
    }
}

/// Whether a fact that this turn told is held.
fn is_held(held: &[Held], told_in: Option<usize>) -> bool {
    told_in.is_some() && held.iter().any(|held| held.told_in == told_in)
}
