//! From figures to a choice: which codec and policy, how many bytes, and why, in words. Pure.

use crate::fit::{Device, Figures, PORTION};
use haversack::engine::Codec;
use haversack::memory::bytes::human;
use serde_json::{Value as Json, json};

/// Up to this much RAM every byte counts.
const PHONE_SMALL: u64 = 4 << 30;
/// Weights worth locking leave this many times their size to others.
const LOCK_TIMES: u64 = 8;
/// First tokens of a window that never leave.
const ANCHORS: usize = 64;

/// One choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub kv: Codec,
    pub policy: &'static str,
    /// Tokens kept at most.
    pub context: usize,
    pub memory_bytes: u64,
    pub command: String,
    pub why: String,
}

/// The choices for the cases that people ask about.
pub struct Advice {
    /// Mode and reason.
    pub weights: (&'static str, String),
    choices: Vec<(&'static str, &'static str, Choice)>,
}

impl Advice {
    pub fn new(
        figures: &Figures<'_>,
        ram_bytes: u64,
        session: usize,
        model: Option<&str>,
    ) -> Advice {
        let case = |device| Case {
            figures,
            device,
            model,
        };
        let device = Device::of(ram_bytes);
        let here = case(device);
        let this = match ram_bytes <= PHONE_SMALL {
            true => here.small(),
            false => here.roomy(),
        };
        let phone = |gigabytes: u64| case(Device::of(gigabytes << 30));
        Advice {
            weights: weights(device, figures.weights_bytes),
            choices: vec![
                ("phone_4gb", "a 4 GB phone", phone(4).small()),
                ("phone_8gb", "an 8 GB phone", phone(8).roomy()),
                ("quality", "quality first", here.quality()),
                ("many_users", "many users", here.many(session)),
                ("this_ram", "this much RAM", this),
            ],
        }
    }

    pub fn json(&self) -> Json {
        let choices = self.choices.iter().map(|(key, _, choice)| {
            let value = json!({
                "kv": choice.kv.name(),
                "policy": choice.policy,
                "context": choice.context,
                "memory_bytes": choice.memory_bytes,
                "command": choice.command,
                "why": choice.why,
            });
            ((*key).to_owned(), value)
        });
        Json::Object(choices.collect())
    }

    pub fn text(&self) -> String {
        let mut text = String::from("recommended\n");
        for (_, title, choice) in &self.choices {
            let Choice { command, why, .. } = choice;
            text.push_str(&format!("  {title:<14}{command}\n  {:<14}{why}\n", ""));
        }
        text
    }
}

fn weights(device: Device, bytes: u64) -> (&'static str, String) {
    let (share, size) = (human(device.app_bytes()), human(bytes));
    if !device.fits(bytes) {
        let why = format!(
            "{size} do not fit the {share} an app may take: pages are read again from storage for every token; each layer is asked for while the one before it is computed. A smaller or more quantised model would be faster"
        );
        return ("prefetch", why);
    }
    if !device.is_phone() && bytes.saturating_mul(LOCK_TIMES) <= device.app_bytes() {
        let why =
            "there is memory to spare, and page cache of other programs cannot evict the weights";
        return ("locked", why.into());
    }
    let why = "an app may take; clean pages that the system can take back";
    ("mapped", format!("they fit the {share} {why}"))
}

/// A device and a model to choose for.
struct Case<'a> {
    figures: &'a Figures<'a>,
    device: Device,
    model: Option<&'a str>,
}

impl Case<'_> {
    fn room(&self) -> u64 {
        self.device.room(self.figures.weights_bytes)
    }

    /// As small as it goes without being heard.
    fn small(&self) -> Choice {
        let why = "the whole context in 4 bits, and a window once it is full";
        self.choose(Codec::Int4, why)
    }

    /// int8 where the whole context takes no more than half of what is left, else as on a small one.
    fn roomy(&self) -> Choice {
        if self.figures.whole(Codec::Int8) <= self.room() / 2 {
            self.choose(Codec::Int8, "int8 cannot be told from f16 and the whole context takes less than half of what is left")
        } else {
            self.small()
        }
    }

    /// The best codec that holds the whole context; f16 only where memory is plentiful.
    fn quality(&self) -> Choice {
        let room = self.room();
        let fits = |codec: Codec| self.figures.whole(codec) <= room;
        if self.figures.whole(Codec::F16) <= room / 4 {
            let why = "everything as computed; it takes less than a quarter of what is left";
            return self.choose(Codec::F16, why);
        }
        let codecs = [Codec::Int8, Codec::Int5, Codec::Int4];
        let best = codecs.into_iter().find(|&codec| fits(codec));
        let why = match best {
            Some(Codec::Int8) => "int8 cannot be told from f16 and holds the whole context",
            Some(_) => "the best codec that still holds the whole context",
            None => {
                "no codec worth having holds the whole context; more tokens in 4 bits are better than fewer in 8"
            }
        };
        self.choose(best.unwrap_or(Codec::Int4), why)
    }

    /// A window each, so that no conversation takes the memory of another.
    fn many(&self, session: usize) -> Choice {
        let kv = Codec::Int4;
        let count = self.figures.sessions(kv, self.room(), session);
        let memory_bytes = mebibytes(self.figures.needs(kv, session).total() as u64);
        let window = session.saturating_sub(ANCHORS + PORTION);
        let flags = match window {
            0 => format!("--policy window --context {session}"),
            _ => format!("--policy window --anchors {ANCHORS} --window {window}"),
        };
        Choice {
            kv,
            policy: "window",
            context: session,
            memory_bytes,
            command: self.command(kv, &flags, memory_bytes),
            why: format!(
                "{count} sessions of {session} tokens at once; each keeps its first and its last tokens and never needs more"
            ),
        }
    }

    fn choose(&self, kv: Codec, why: &str) -> Choice {
        let trained = self.figures.config.context_trained;
        let room = self.room();
        let whole = self.figures.whole(kv);
        let context = self.figures.tokens_max(kv, room).min(trained);
        let least = self.figures.needs(kv, PORTION).total() as u64;
        // Rounding up may not pass what there is.
        let memory_bytes = mebibytes(whole).min(room).max(least);
        let mut why = why.to_owned();
        if context < trained {
            let (held, whole) = (human(memory_bytes), human(whole));
            why = format!(
                "{held} hold the last of {context} tokens; the trained context of {trained} would take {whole}"
            );
        }
        if !self.device.fits(self.figures.weights_bytes) {
            let weights = human(self.figures.weights_bytes);
            why += &format!("; the weights ({weights}) do not fit, expect it to be slow");
        }
        Choice {
            kv,
            policy: "auto",
            context,
            memory_bytes,
            command: self.command(kv, "--policy auto", memory_bytes),
            why,
        }
    }

    fn command(&self, kv: Codec, flags: &str, memory_bytes: u64) -> String {
        let model = match self.model {
            Some(model) if model.contains(char::is_whitespace) => format!(" '{model}'"),
            Some(model) => format!(" {model}"),
            None => String::new(),
        };
        let memory = match memory_bytes {
            bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
            bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
            bytes => bytes.to_string(),
        };
        let mode = match weights(self.device, self.figures.weights_bytes).0 {
            "prefetch" => " --weights prefetch",
            _ => "",
        };
        format!("haversack chat{model} --kv {kv} {flags} --memory {memory}{mode}")
    }
}

/// Up to whole MiB.
fn mebibytes(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(1 << 20).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_by_device() {
        let mode = |ram: u64, bytes| weights(Device::of(ram), bytes).0;
        assert_eq!(mode(4 << 30, 100 << 20), "mapped");
        assert_eq!(mode(4 << 30, 4 << 30), "prefetch");
        assert_eq!(mode(64 << 30, 4 << 30), "locked");
        assert_eq!(mode(64 << 30, 40 << 30), "mapped");
        assert_eq!(mode(1, 1), "prefetch");
    }
}
