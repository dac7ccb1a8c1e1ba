//! Parameter sets for [`super::tiers`] by use case, and a guess at the use case from the prompt.
//!
//! The guess looks for a few keywords and code-like lines at both ends of the prompt. It is sometimes wrong; the user can
//! name the profile instead.

use super::tiers::TiersParams;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As published.
    #[default]
    Chat,
    /// Keeps more in the middle layers: identifiers far above are needed exactly.
    Code,
    /// The gist is enough.
    Summarize,
    /// Favours deep layers: the subject of a text must not fade.
    LongForm,
    /// Shallow layers, too, lose only rows below a threshold.
    Conservative,
}

impl Profile {
    pub const ALL: [Profile; 5] = [
        Profile::Chat,
        Profile::Code,
        Profile::Summarize,
        Profile::LongForm,
        Profile::Conservative,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Profile::Chat => "chat",
            Profile::Code => "code",
            Profile::Summarize => "summarize",
            Profile::LongForm => "long-form",
            Profile::Conservative => "conservative",
        }
    }

    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|p| p.name() == name)
    }

    pub const fn params(self) -> TiersParams {
        let mut params = TiersParams::PUBLISHED;
        match self {
            Profile::Chat => {}
            Profile::Code => {
                params.middle.theta = 0.10;
                params.middle.batch = 8;
            }
            Profile::Summarize => {
                params.middle.theta = 0.30;
                params.middle.batch = 32;
            }
            Profile::LongForm => {
                params.deep.recent = 512;
                params.deep.theta = 0.15;
                params.deep.share_max = 0.05;
            }
            Profile::Conservative => {
                params.shallow.theta = Some(0.20);
                params.middle.theta = 0.30;
                params.deep.theta = 0.35;
            }
        }
        params
    }

    /// A guess from the prompt.
    pub fn of(prompt: &str) -> Profile {
        let ends = ends(prompt).map(str::to_lowercase);
        let says = |words: &str| {
            words
                .split('|')
                .any(|w| ends.iter().any(|end| end.contains(w)))
        };
        if says(SUMMARIZE) {
            return Profile::Summarize;
        }
        let lines = ends.iter().flat_map(|end| end.lines());
        let lines = lines.filter(|line| !line.trim().is_empty());
        let (all, code) = lines.fold((0, 0), |(all, code), line| {
            (all + 1, code + usize::from(is_code(line)))
        });
        if says("```") || code * CODE_LINES_OF > all && code > 1 {
            Profile::Code
        } else if says(LONG_FORM) {
            Profile::LongForm
        } else {
            Profile::Chat
        }
    }
}

/// Bytes of a prompt that are examined at either end: where people say what they want.
const END_BYTES: usize = 2000;
/// One code-like line in this many makes it code.
const CODE_LINES_OF: usize = 3;

const SUMMARIZE: &str = "summarize|summarise|summary of|tl;dr|key points";
const LONG_FORM: &str = "write a story|write an essay|write a chapter|write an article|\
                         continue the story|write a long";

fn ends(prompt: &str) -> [&str; 2] {
    if prompt.len() <= 2 * END_BYTES {
        return [prompt, ""];
    }
    let head = prompt.floor_char_boundary(END_BYTES);
    let tail = prompt.ceil_char_boundary(prompt.len() - END_BYTES);
    [&prompt[..head], &prompt[tail..]]
}

fn is_code(line: &str) -> bool {
    let line = line.trim();
    let begins = [
        "fn ", "def ", "class ", "import ", "#include", "return ", "let ", "const ", "//",
    ];
    begins.iter().any(|word| line.starts_with(word))
        || line.ends_with([';', '{', '}'])
        || line.ends_with("):")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_has_a_name_and_valid_parameters() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
            assert_eq!(profile.params().check(3), Ok(()));
        }
        assert_eq!(Profile::from_name("auto"), None);
        assert_eq!(Profile::default().params(), TiersParams::default());
    }

    #[test]
    fn profiles_are_guessed_from_the_prompt() {
        let long = "It was a dark and stormy night. ".repeat(400);
        for (prompt, profile) in [
            ("", Profile::Chat),
            ("What is the capital of Peru?", Profile::Chat),
            ("Summarize this:\nfn main() {\n}\n", Profile::Summarize),
            (&format!("{long}\nTL;DR"), Profile::Summarize),
            (
                "EvictionReason does this fail?\n```\nx = 1\n```",
                Profile::Code,
            ),
            ("def f(x):\n    return x\n\nf(", Profile::Code),
            (
                "Please write a story about a crane; end it well.",
                Profile::LongForm,
            ),
            (&format!("{long} Tell me more."), Profile::Chat),
            (&"ü".repeat(5000), Profile::Chat),
        ] {
            assert_eq!(Profile::of(prompt), profile, "{:.40}", prompt);
        }
    }
}
