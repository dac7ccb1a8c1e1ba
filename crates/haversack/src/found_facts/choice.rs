//! A question that the model answers with one word of a list: the examples before it, and what its words mean. Pure.

use crate::error::Error;
use haversack_conversations::scheduler::{Priority, Request};
use haversack_conversations::session::Requester;
use haversack_text::tokenizer::{EncodeOptions, Tokenizer};

/// Tokens whose log-probabilities are looked at; the words of a list are among them.
pub const LIKELIEST: usize = 20;

pub struct ModelChoice {
    /// What is asked, with examples. It ends where the texts begin.
    examples: &'static str,
    /// Before each text, and before the answer.
    before: [&'static str; 2],
    answer: &'static str,
    /// Words that choose it, and all others.
    chosen: &'static [&'static str],
    others: &'static [&'static str],
}

/// Whether a sentence says something that lasts.
pub const LASTING: ModelChoice = ModelChoice {
    examples: include_str!("lasting.txt"),
    before: ["Line: ", ""],
    answer: "Kind:",
    chosen: &["fact"],
    others: &["event", "feeling", "wish", "request", "talk", "world"],
};

/// Whether the second of two sentences ends what the first one says.
pub const INSTEAD: ModelChoice = ModelChoice {
    examples: include_str!("instead.txt"),
    before: ["Before: ", "Later: "],
    answer: "So:",
    chosen: &["instead"],
    others: &["both"],
};

impl ModelChoice {
    /// Asks it with one token of answer, in the background. All questions begin with the same examples.
    pub fn request(
        &self,
        tokenizer: &Tokenizer,
        texts: &[&str],
        owner: Requester,
    ) -> Result<Request, Error> {
        let mut tokens = encode(tokenizer, self.examples.trim_end(), true)?;
        let border = tokens.len();
        let mut asked = String::from("\n\n");
        for (before, text) in self.before.iter().zip(texts) {
            asked += &format!("{before}{text}\n");
        }
        tokens.extend(encode(tokenizer, &(asked + self.answer), false)?);
        let mut request = Request::completion(tokens);
        request.borders = vec![border];
        request.options.tokens_max = Some(1);
        request.options.ignore_end = true;
        request.sample.temperature = 0.0;
        request.priority = Priority::Background;
        request.owner = owner;
        Ok(request)
    }

    /// Whether the likeliest first tokens choose it.
    pub fn is_chosen_by(&self, tokenizer: &Tokenizer, likeliest: &[(u32, f64)]) -> bool {
        let texts = likeliest.iter().map(|&(id, logprob)| {
            let text = tokenizer.decode(&[id]).unwrap_or_default();
            (text, logprob)
        });
        self.is_chosen(texts)
    }

    /// What the likeliest first tokens of an answer say: a token speaks for the words that it begins.
    fn is_chosen(&self, likeliest: impl Iterator<Item = (String, f64)>) -> bool {
        let (mut chosen, mut others) = (0.0, 0.0);
        for (text, logprob) in likeliest {
            let text = text.trim().to_lowercase();
            let begins = |words: &[&str]| words.iter().any(|word| word.starts_with(&text));
            let share = match text.is_empty() {
                true => continue,
                false => f64::exp(logprob),
            };
            match (begins(self.chosen), begins(self.others)) {
                (true, false) => chosen += share,
                (false, true) => others += share,
                _ => {}
            }
        }
        chosen > others
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, is_first: bool) -> Result<Vec<u32>, Error> {
    let options = EncodeOptions {
        add_special: is_first,
        parse_special: false,
    };
    Ok(tokenizer.encode(text, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_list_are_compared() {
        let chooses = |answers: &[(&str, f64)]| {
            let answers = answers
                .iter()
                .map(|&(text, share)| (text.to_owned(), f64::ln(share)));
            LASTING.is_chosen(answers)
        };
        assert!(chooses(&[(" fact", 0.5), (" event", 0.2), (" wish", 0.2)]));
        assert!(!chooses(&[(" fact", 0.3), (" event", 0.2), (" wish", 0.2)]));
        // A tokenizer may cut words; what begins words of both kinds says nothing, nor does what begins none.
        assert!(chooses(&[
            ("fac", 0.3),
            ("re", 0.1),
            ("f", 0.9),
            ("Paris", 0.9)
        ]));
        assert!(!chooses(&[("re", 0.1), ("f", 0.9), ("", 0.9)]));
        assert!(!chooses(&[]) && !chooses(&[("Paris", 1.0)]));
    }

    /// The examples are no answers of their own.
    #[test]
    fn examples_use_the_words_of_their_list() {
        for choice in [LASTING, INSTEAD] {
            let answers = choice.examples.lines();
            let answers = answers.filter_map(|line| line.strip_prefix(choice.answer));
            let answers: Vec<&str> = answers.map(str::trim).collect();
            assert!(answers.len() >= 8);
            let words: Vec<&str> = choice.chosen.iter().chain(choice.others).copied().collect();
            assert!(answers.iter().all(|answer| words.contains(answer)));
        }
    }
}
