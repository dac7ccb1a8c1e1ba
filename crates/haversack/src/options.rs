//! Options of an engine, and of how the events of a request are told.

/// How many requests an engine computes, queues and remembers.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Sequences in one step.
    pub batch: usize,
    /// Requests that may wait besides those.
    pub queue: usize,
    /// Several owners send requests: each leaves a quarter of both to others.
    pub several_owners: bool,
    /// Requests whose keys and values are kept for prompts that begin alike.
    pub prefix_cache: usize,
    /// Facts are found for sessions whose settings ask for it. Not for a program that finds them itself, and shows them.
    pub auto_facts: bool,
    /// Log alerts and changes of the device. Not for an engine with one caller, who sees both in the answers.
    pub logs: bool,
}

impl EngineOptions {
    /// Of `places`, how many one owner may take.
    pub(crate) fn owner_share(&self, places: usize) -> usize {
        match self.several_owners {
            true => (places - places / 4).max(1),
            false => places,
        }
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            batch: 8,
            queue: 64,
            several_owners: false,
            prefix_cache: 16,
            auto_facts: true,
            logs: true,
        }
    }
}

/// How the events of requests are told.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventOptions {
    /// How many of the likeliest tokens are told with each; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// Events that may wait to be received.
    pub max_behind: usize,
    /// The engine waits for a reader that is further behind, and computes nothing meanwhile: for an engine with one
    /// caller. Otherwise its request is cancelled.
    pub waits: bool,
    /// [`AnswerEvent::PromptRead`](crate::AnswerEvent::PromptRead) is told.
    pub progress: bool,
}
