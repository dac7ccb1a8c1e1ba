//! Which sentences of a turn become facts, and which older facts they replace. Who chooses is a parameter.

use super::choice::{INSTEAD, LASTING, ModelChoice};
use super::sentences::{begins_with_pronoun, in_common, is_same, sentences, statements};
use crate::error::Error;
use crate::sessions::SaidInTurn;
use haversack_conversations::session::FactView;

/// How a fact begins: who says it is not the one who answers. The date comes before the colon, where there is one.
const SAID: &str = "The user said";

/// Older facts that a new one is compared with, those with the most in common first.
const COMPARED_MAX: usize = 3;

/// A lasting fact that a turn tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFact {
    /// As it is added: the words of the user, and that they are the user's.
    pub text: String,
    /// The turn that says it.
    pub found_in: u64,
    /// The fact that holds no more.
    pub supersedes: Option<u64>,
}

impl FoundFact {
    /// What the user said, without who said it.
    pub fn words(&self) -> &str {
        words_of_user(&self.text)
    }
}

/// The words of a fact, whether it was found or told.
fn words_of_user(text: &str) -> &str {
    let words = match text.strip_prefix(SAID) {
        Some(said) if said.starts_with(" on ") => said.split_once(": ").map(|(_, words)| words),
        said => said.and_then(|said| said.strip_prefix(": ")),
    };
    words.unwrap_or(text)
}

/// Answers the questions of a search.
pub trait Chooser: Sync {
    fn chooses(
        &self,
        choice: &ModelChoice,
        texts: &[&str],
    ) -> impl Future<Output = Result<bool, Error>> + Send;
}

/// New facts of a turn, in the words of the user.
pub async fn find(
    told: &SaidInTurn,
    turn: u64,
    model: &impl Chooser,
) -> Result<Vec<FoundFact>, Error> {
    let mut facts: Vec<FoundFact> = Vec::new();
    let before = told.before.as_deref();
    let mut named = before.and_then(|text| sentences(text).last());
    for sentence in statements(&told.text) {
        let text = match named {
            Some(named) if begins_with_pronoun(sentence) => format!("{named} {sentence}"),
            _ => {
                named = Some(sentence);
                sentence.to_owned()
            }
        };
        let mut older = known(&told.facts).map(|(_, words)| words);
        let mut newer = facts.iter().map(FoundFact::words);
        let is_known =
            older.any(|words| is_same(words, &text)) || newer.any(|words| is_same(words, &text));
        if is_known || !model.chooses(&LASTING, &[sentence]).await? {
            continue;
        }
        let replaced: Vec<u64> = facts.iter().filter_map(|fact| fact.supersedes).collect();
        let held = told
            .facts
            .iter()
            .filter(|fact| !replaced.contains(&fact.number));
        let supersedes = superseded(&text, held, model).await?;
        let date = told.date.as_ref().map(|date| format!(" on {date}"));
        facts.push(FoundFact {
            text: format!("{SAID}{}: {text}", date.unwrap_or_default()),
            found_in: turn,
            supersedes,
        });
    }
    Ok(facts)
}

/// The older fact that a new one takes the place of.
async fn superseded<'a>(
    text: &str,
    facts: impl IntoIterator<Item = &'a FactView>,
    model: &impl Chooser,
) -> Result<Option<u64>, Error> {
    let facts: Vec<(u64, &str)> = known(facts).collect();
    let texts: Vec<&str> = facts.iter().map(|(_, text)| *text).collect();
    let common = in_common(text, &texts).into_iter().zip(facts);
    let mut common: Vec<(f64, (u64, &str))> = common.filter(|(common, _)| *common > 0.0).collect();
    common.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    for (_, (number, older)) in common.into_iter().take(COMPARED_MAX) {
        if model.chooses(&INSTEAD, &[older, text]).await? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Facts that were told or found, with their words; not what the conversation began with.
fn known<'a>(
    facts: impl IntoIterator<Item = &'a FactView>,
) -> impl Iterator<Item = (u64, &'a str)> {
    let facts = facts.into_iter().filter(|fact| fact.number > 0);
    facts.map(|fact| (fact.number, words_of_user(&fact.text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    /// Chooses what has one of these words in its last text, and notes what it was asked.
    struct ByWord<'a> {
        words: &'a [&'a str],
        asked: Mutex<Vec<String>>,
    }

    impl Chooser for ByWord<'_> {
        async fn chooses(&self, _: &ModelChoice, texts: &[&str]) -> Result<bool, Error> {
            let text = texts.join(" -> ");
            let last = texts.last().unwrap();
            let chosen = self.words.iter().any(|word| last.contains(word));
            self.asked.lock().unwrap().push(text);
            Ok(chosen)
        }
    }

    fn found(told: &SaidInTurn, words: &[&str]) -> (Vec<FoundFact>, Vec<String>) {
        let model = ByWord {
            words,
            asked: Mutex::default(),
        };
        let Poll::Ready(found) =
            pin!(find(told, 7, &model)).poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("nothing is waited for");
        };
        (found.unwrap(), model.asked.into_inner().unwrap())
    }

    fn told(before: &str, text: &str, facts: &[&str]) -> SaidInTurn {
        let facts = facts.iter().enumerate().map(|(number, text)| FactView {
            number: number as u64,
            text: (*text).to_owned(),
            found_in: None,
        });
        SaidInTurn {
            text: text.to_owned(),
            time_ms: 0,
            date: None,
            before: Some(before.to_owned()),
            facts: facts.collect(),
        }
    }

    #[test]
    fn facts_are_sentences_of_the_user() {
        let turn = told(
            "Hello. I rang my sister Clara.",
            "She moved to Ghent. Tell me a joke. That's funny. Do I sing? I sing.",
            &["You sing."],
        );
        let (facts, asked) = found(&turn, &["Ghent", "sing"]);
        let texts: Vec<&str> = facts.iter().map(|fact| &fact.text[..]).collect();
        assert_eq!(
            texts,
            [
                "The user said: I rang my sister Clara. She moved to Ghent.",
                "The user said: I sing."
            ]
        );
        assert!(
            facts
                .iter()
                .all(|fact| fact.found_in == 7 && fact.supersedes.is_none())
        );
        assert_eq!(asked, ["She moved to Ghent.", "That's funny.", "I sing."]);
        assert_eq!(found(&turn, &[]).0, []);
    }

    #[test]
    fn a_dated_turn_tells_dated_facts() {
        let told = SaidInTurn {
            date: Some("Friday, 20 November 2026".to_owned()),
            ..told("", "I sing.", &["", "The user said: I dance."])
        };
        let (facts, _) = found(&told, &["sing"]);
        let text = "The user said on Friday, 20 November 2026: I sing.";
        assert_eq!((&facts[0].text[..], facts[0].words()), (text, "I sing."));
        let known = SaidInTurn {
            facts: vec![FactView {
                number: 1,
                text: text.to_owned(),
                found_in: None,
            }],
            ..told
        };
        assert_eq!(found(&known, &["sing"]).0, []);
    }

    #[test]
    fn what_is_known_is_not_found_again_and_what_has_ended_is_replaced() {
        let known = [
            "The user said: x",
            "The user said: I sing.",
            "I live in Ghent.",
        ];
        let turn = told(
            "",
            "I sing. I live in Porto, not in Ghent. I live in Porto, not in Ghent.",
            &known,
        );
        let (facts, asked) = found(&turn, &["sing", "Porto"]);
        assert_eq!(facts.len(), 1, "{facts:?}");
        assert_eq!(facts[0].supersedes, Some(2));
        assert_eq!(facts[0].words(), "I live in Porto, not in Ghent.");
        // What it began with is no fact to compare with, and what has no word in common is not asked about.
        let pair = "I live in Ghent. -> I live in Porto, not in Ghent.";
        assert_eq!(asked, ["I live in Porto, not in Ghent.", pair]);
        let turn = told("", "I live in Porto. I live in Cork.", &known);
        let (facts, _) = found(&turn, &["Porto", "Cork"]);
        let replaced: Vec<Option<u64>> = facts.iter().map(|fact| fact.supersedes).collect();
        assert_eq!(replaced.iter().flatten().filter(|n| **n == 2).count(), 1);
    }
}
