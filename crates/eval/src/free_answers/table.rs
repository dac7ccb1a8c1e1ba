//! Judged answers as rows of a file, and what they say together. Pure.

use super::choices::TurnChoice;
use super::judging::{contains_answer, says_not_said, token_f1};
use super::library::GivenAnswer;
use crate::long_talk::LongQuestion;
use crate::stats::{Interval, Spread, interval, ratio};

/// Of the intervals: a report can be made again.
const SEED: u64 = 27;

/// A question that was answered and judged.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedAnswer {
    pub choice: TurnChoice,
    pub talk: usize,
    /// Number of the question in its talk.
    pub question: usize,
    pub kind: String,
    pub f1: f64,
    /// It has all words of the right answer.
    pub is_contained: bool,
    /// It says that nothing was said.
    pub is_not_said: bool,
    /// Every turn was shown without which the question cannot be answered; true where there is none.
    pub is_covered: bool,
    pub turns: usize,
    pub tokens: u64,
    pub first_ms: f64,
    pub whole_ms: f64,
    pub answer: String,
}

impl JudgedAnswer {
    pub const HEADER: &str = "choice,talk,question,kind,f1,contained,not_said,covered,turns,tokens,first_ms,whole_ms,answer";

    pub fn new(
        choice: TurnChoice,
        (talk, question): (usize, usize),
        kind: &str,
        asked: &LongQuestion,
        given: &GivenAnswer,
    ) -> JudgedAnswer {
        let is_shown = |&turn: &usize| given.is_shown.get(turn).copied().unwrap_or(false);
        JudgedAnswer {
            choice,
            talk,
            question,
            kind: kind.to_owned(),
            f1: token_f1(&given.text, &asked.answer),
            is_contained: contains_answer(&given.text, &asked.answer),
            is_not_said: says_not_said(&given.text),
            is_covered: asked.evidence.iter().all(is_shown),
            turns: given.is_shown.iter().filter(|&&shown| shown).count(),
            tokens: given.tokens,
            first_ms: given.first.as_secs_f64() * 1e3,
            whole_ms: given.whole.as_secs_f64() * 1e3,
            answer: given.text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// A line of a file.
    pub fn line(&self) -> String {
        format!(
            "{},{},{},{},{:.4},{},{},{},{},{},{:.1},{:.1},\"{}\"",
            self.choice.name(),
            self.talk,
            self.question,
            self.kind,
            self.f1,
            u8::from(self.is_contained),
            u8::from(self.is_not_said),
            u8::from(self.is_covered),
            self.turns,
            self.tokens,
            self.first_ms,
            self.whole_ms,
            self.answer.replace('"', "\"\""),
        )
    }

    /// What a whole line says; `None` of what is none.
    pub fn of_line(line: &str) -> Option<JudgedAnswer> {
        let mut values = line.splitn(13, ',');
        let mut next = || values.next();
        let is = |value: &str| match value {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        };
        Some(JudgedAnswer {
            choice: TurnChoice::named(next()?)?,
            talk: next()?.parse().ok()?,
            question: next()?.parse().ok()?,
            kind: next()?.to_owned(),
            f1: next()?.parse().ok()?,
            is_contained: is(next()?)?,
            is_not_said: is(next()?)?,
            is_covered: is(next()?)?,
            turns: next()?.parse().ok()?,
            tokens: next()?.parse().ok()?,
            first_ms: next()?.parse().ok()?,
            whole_ms: next()?.parse().ok()?,
            answer: {
                let answer = next()?.strip_prefix('"')?.strip_suffix('"')?;
                answer.replace("\"\"", "\"")
            },
        })
    }

    /// Whether it is the answer to a question about something that was never said.
    pub fn is_never(&self) -> bool {
        self.kind == crate::long_talk::Hardness::Never.name()
    }

    fn is_same_question(&self, other: &JudgedAnswer) -> bool {
        (self.talk, self.question) == (other.talk, other.question)
    }
}

/// A mean over questions, with its interval where there are two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanOf {
    pub mean: f64,
    pub interval: Option<Interval>,
    pub count: usize,
}

impl MeanOf {
    fn new(values: impl Iterator<Item = f64>) -> MeanOf {
        let units: Vec<(f64, usize)> = values.map(|value| (value, 1)).collect();
        let sum: f64 = units.iter().map(|unit| unit.0).sum();
        MeanOf {
            mean: sum / units.len().max(1) as f64,
            interval: interval(&units, SEED, ratio),
            count: units.len(),
        }
    }
}

/// What the answers of one way to choose turns say together. Questions about what was never said count for `invented`
/// alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerSummary {
    pub f1: MeanOf,
    pub contained: MeanOf,
    pub covered: MeanOf,
    /// Of the questions whose turns were shown.
    pub f1_covered: MeanOf,
    /// Less than the full cache's, question by question, of those that both answered.
    pub against_full: MeanOf,
    /// Of answers to what was never said: those that do not say so.
    pub invented: MeanOf,
    /// Of answers to what was said: those that say it was not.
    pub denied: MeanOf,
    pub tokens: f64,
    pub first_ms: f64,
    pub whole_ms: f64,
}

impl AnswerSummary {
    /// Of the answers of one choice among `all`, those of one kind if a kind is named.
    pub fn of(all: &[JudgedAnswer], choice: TurnChoice, kind: Option<&str>) -> AnswerSummary {
        let is_of = |answer: &&JudgedAnswer| {
            answer.choice == choice && kind.is_none_or(|kind| answer.kind == kind)
        };
        let own = || all.iter().filter(is_of);
        let said = || own().filter(|answer| !answer.is_never());
        let share = |is: bool| f64::from(u8::from(is));
        let against = said().filter_map(|answer| {
            let mut full = all.iter().filter(|other| other.choice == TurnChoice::Full);
            let full = full.find(|full| full.is_same_question(answer))?;
            Some(answer.f1 - full.f1)
        });
        let median = |of: fn(&JudgedAnswer) -> f64| {
            Spread::of(own().map(of).collect()).map_or(0.0, |spread| spread.median())
        };
        AnswerSummary {
            f1: MeanOf::new(said().map(|answer| answer.f1)),
            contained: MeanOf::new(said().map(|answer| share(answer.is_contained))),
            covered: MeanOf::new(said().map(|answer| share(answer.is_covered))),
            f1_covered: MeanOf::new(said().filter(|a| a.is_covered).map(|answer| answer.f1)),
            against_full: MeanOf::new(against),
            invented: MeanOf::new(
                own()
                    .filter(|answer| answer.is_never())
                    .map(|answer| share(!answer.is_not_said)),
            ),
            denied: MeanOf::new(said().map(|answer| share(answer.is_not_said))),
            tokens: MeanOf::new(own().map(|answer| answer.tokens as f64)).mean,
            first_ms: median(|answer| answer.first_ms),
            whole_ms: median(|answer| answer.whole_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::long_talk::Hardness;

    fn judged(choice: TurnChoice, question: usize, f1: f64) -> JudgedAnswer {
        JudgedAnswer {
            choice,
            talk: 1,
            question,
            kind: "date".into(),
            f1,
            is_contained: f1 > 0.5,
            is_not_said: false,
            is_covered: question != 0,
            turns: 3,
            tokens: 100 + question as u64,
            first_ms: 10.0,
            whole_ms: 20.5,
            answer: "On \"Monday\", or 3, 4".into(),
        }
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        let answer = judged(TurnChoice::Words, 7, 0.25);
        let columns = JudgedAnswer::HEADER.split(',').count();
        let line = answer.line();
        assert_eq!(line.splitn(columns, ',').count(), columns);
        assert_eq!(JudgedAnswer::of_line(&line), Some(answer));
        assert_eq!(JudgedAnswer::of_line(JudgedAnswer::HEADER), None);
        let answer = line.find('"').unwrap();
        for end in 0..=answer {
            assert_eq!(JudgedAnswer::of_line(&line[..end]), None, "{end}");
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_words_and_by_what_it_saw() {
        let asked = LongQuestion {
            question: "Who?".into(),
            hardness: Hardness::Two,
            evidence: vec![0, 2],
            answer: "cello and banjo".into(),
        };
        let mut given = GivenAnswer {
            text: "Cello,\nbanjo".into(),
            is_shown: vec![true, false, true],
            ..GivenAnswer::default()
        };
        let judge = |given: &GivenAnswer| {
            JudgedAnswer::new(TurnChoice::Session, (0, 0), "two", &asked, given)
        };
        let found = judge(&given);
        assert!(found.is_contained && found.is_covered && !found.is_not_said);
        assert_eq!((found.f1, found.turns), (0.8, 2));
        assert_eq!(found.answer, "Cello, banjo");
        given.is_shown[2] = false;
        assert!(!judge(&given).is_covered);
    }

    #[test]
    fn a_summary_compares_the_same_questions() {
        let never = |choice, is_not_said| JudgedAnswer {
            kind: "never".into(),
            is_not_said,
            ..judged(choice, 9, 0.0)
        };
        let all = [
            judged(TurnChoice::Full, 0, 1.0),
            judged(TurnChoice::Full, 1, 0.5),
            never(TurnChoice::Full, true),
            judged(TurnChoice::Session, 1, 0.75),
            judged(TurnChoice::Session, 0, 0.25),
            judged(TurnChoice::Session, 2, 0.5),
            never(TurnChoice::Session, false),
        ];
        let found = AnswerSummary::of(&all, TurnChoice::Session, None);
        assert_eq!((found.f1.mean, found.f1.count), (0.5, 3));
        assert_eq!((found.f1_covered.mean, found.f1_covered.count), (0.625, 2));
        assert_eq!(
            (found.against_full.mean, found.against_full.count),
            (-0.25, 2)
        );
        assert_eq!((found.invented.mean, found.invented.count), (1.0, 1));
        assert_eq!(found.denied.mean, 0.0);
        let full = AnswerSummary::of(&all, TurnChoice::Full, Some("never"));
        assert_eq!((full.f1.count, full.invented.mean), (0, 0.0));
    }
}
