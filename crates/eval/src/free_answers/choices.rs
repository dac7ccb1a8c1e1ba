//! Ways to choose which turns of a talk a question is shown. Data.

use haversack_conversations::session::SessionSettings;
use haversack_conversations::session::relevance::Relevance;

/// Who chooses the turns that an answer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnChoice {
    /// Everything is in memory and visible.
    Full,
    /// The latest turns that fit.
    Window,
    /// The session without an encoder: by words, beside the latest turns.
    Words,
    /// The eight turns most similar to the question, and the latest two.
    EncoderEight,
    /// The session as it is.
    Session,
    /// The turns without which the question cannot be answered, and the latest two.
    Oracle,
}

/// A similarity that no two texts have, near enough: what is not recalled by its number stays hidden.
const UNREACHED: f32 = 1.0;

impl TurnChoice {
    pub const ALL: [TurnChoice; 6] = [
        TurnChoice::Full,
        TurnChoice::Window,
        TurnChoice::Words,
        TurnChoice::EncoderEight,
        TurnChoice::Session,
        TurnChoice::Oracle,
    ];

    pub fn name(self) -> &'static str {
        match self {
            TurnChoice::Full => "full",
            TurnChoice::Window => "window",
            TurnChoice::Words => "words",
            TurnChoice::EncoderEight => "encoder-8",
            TurnChoice::Session => "session",
            TurnChoice::Oracle => "oracle",
        }
    }

    pub fn named(name: &str) -> Option<TurnChoice> {
        TurnChoice::ALL
            .into_iter()
            .find(|choice| choice.name() == name)
    }

    /// Whether its sessions rank turns by an encoder, where there is one.
    pub fn has_encoder(self) -> bool {
        !matches!(
            self,
            TurnChoice::Full | TurnChoice::Window | TurnChoice::Words
        )
    }

    /// Settings of its sessions, with this capacity.
    pub fn settings(self, capacity: usize) -> SessionSettings {
        let relevance = match self {
            TurnChoice::Full | TurnChoice::Window => Relevance::All,
            TurnChoice::Words | TurnChoice::Session => Relevance::default(),
            TurnChoice::EncoderEight | TurnChoice::Oracle => Relevance::Threshold(UNREACHED),
        };
        SessionSettings {
            capacity: Some(capacity),
            relevance: Some(relevance),
            ..SessionSettings::default()
        }
    }
}
