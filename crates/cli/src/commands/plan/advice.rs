//! From figures to a choice: which codec and policy, how many bytes, and why, in words.
//!
//! Pure: a device is its RAM, a model its metadata. What an app may take of the RAM is an assumption,
//! and said as one.

use haversack::engine::model::Config;
use haversack::engine::runtime::plan::{self, ComputeSetting, MemoryNeeds};
use haversack::engine::{Codec, KvOptions};
use haversack::memory::bytes::human;
use serde_json::{Value as Json, json};

/// Of a phone's RAM, what one app in the foreground may hold before the system ends it: about half,
/// the rest is the system's and the launcher's.
const PHONE_SHARE: (u64, u64) = (1, 2);
/// Of a machine that is there to serve: most of it.
const SERVER_SHARE: (u64, u64) = (9, 10);
/// Devices with more RAM than this count as machines, not as phones.
const PHONE_RAM_MAX: u64 = 16 << 30;
/// Up to this much RAM every byte counts.
const PHONE_SMALL: u64 = 4 << 30;
/// The program, its tokenizer and its stacks, beside weights and budget.
pub const PROCESS_BYTES: u64 = 48 << 20;
/// Where weights alone fill an app's share, keys and values may still have this part of it: pages of
/// weights can be read again, keys and values cannot.
const SHORT_SHARE: u64 = 4;
/// Weights worth locking leave this many times their size to others.
const LOCK_TIMES: u64 = 8;
/// Tokens read at once at least; larger portions are taken where the budget has room.
const PORTION: usize = 32;
/// First tokens of a window that never leave.
const ANCHORS: usize = 64;

/// A device, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub ram_bytes: u64,
}

impl Device {
    pub fn of(ram_bytes: u64) -> Device {
        Device { ram_bytes }
    }

    fn is_phone(self) -> bool {
        self.ram_bytes <= PHONE_RAM_MAX
    }

    /// As a number, and as two.
    pub fn share(self) -> (f64, (u64, u64)) {
        let (of, all) = match self.is_phone() {
            true => PHONE_SHARE,
            false => SERVER_SHARE,
        };
        (of as f64 / all as f64, (of, all))
    }

    /// What one app may hold, weights included.
    pub fn app_bytes(self) -> u64 {
        let (_, (of, all)) = self.share();
        self.ram_bytes / all * of
    }

    pub fn fits(self, weights_bytes: u64) -> bool {
        weights_bytes.saturating_add(PROCESS_BYTES) < self.app_bytes()
    }

    /// What is left for everything `--memory` covers.
    pub fn room(self, weights_bytes: u64) -> u64 {
        match self.fits(weights_bytes) {
            true => self.app_bytes() - weights_bytes - PROCESS_BYTES,
            false => self.app_bytes() / SHORT_SHARE,
        }
    }

    pub fn text(self) -> String {
        let (_, (of, all)) = self.share();
        let who = match self.is_phone() {
            true => "a phone leaves one app",
            false => "a machine of its own leaves it",
        };
        let (ram, app) = (human(self.ram_bytes), human(self.app_bytes()));
        format!("{ram} of RAM; assumed: {who} {of}/{all} of it, {app}")
    }
}

/// What a model takes.
pub struct Figures<'a> {
    pub config: &'a Config,
    pub weights_bytes: u64,
    pub threads: usize,
    pub options: &'a dyn Fn(Codec) -> KvOptions,
}

impl Figures<'_> {
    fn setting(&self) -> ComputeSetting {
        ComputeSetting {
            noting: None,
            guarded: false,
            threads: self.threads,
            int8: true,
            chunk: PORTION,
        }
    }

    pub fn bytes_per_token(&self, codec: Codec) -> u64 {
        plan::bytes_per_token(self.config, &(self.options)(codec)) as u64
    }

    pub fn blocks_bytes(&self, codec: Codec, tokens: usize) -> u64 {
        plan::blocks_bytes(self.config, &(self.options)(codec), tokens)
    }

    pub fn needs(&self, codec: Codec, tokens: usize) -> MemoryNeeds {
        let slots = tokens.next_multiple_of(PORTION);
        plan::needs(self.config, &(self.options)(codec), self.setting(), slots)
    }

    /// Tokens that `room` bytes hold.
    pub fn tokens_max(&self, codec: Codec, room: u64) -> usize {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        plan::slots_max(self.config, &(self.options)(codec), self.setting(), room)
    }

    /// Sessions that `room` bytes hold; they compute by turns, so there is one scratch.
    pub fn sessions(&self, codec: Codec, room: u64, tokens: usize) -> u64 {
        let needs = self.needs(codec, tokens);
        let once = (needs.scratch_bytes + needs.side_bytes) as u64;
        let each = needs.kv_bytes.saturating_add(needs.tables_bytes) as u64;
        room.saturating_sub(once).checked_div(each).unwrap_or(0)
    }

    fn whole(&self, codec: Codec) -> u64 {
        self.needs(codec, self.config.context_trained).total() as u64
    }
}

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
    fn what_an_app_may_take() {
        let phone = Device::of(4 << 30);
        assert_eq!(phone.app_bytes(), 2 << 30);
        assert!(phone.fits(1 << 30) && !phone.fits(2 << 30));
        assert_eq!(phone.room(1 << 30), (1 << 30) - PROCESS_BYTES);
        assert_eq!(phone.room(3 << 30), 512 << 20, "weights do not fit");
        let server = Device::of(64 << 30);
        assert!(server.app_bytes() > 57 << 30);
        assert_eq!(Device::of(1).app_bytes(), 0);
        assert_eq!(
            Device::of(u64::MAX).room(u64::MAX),
            Device::of(u64::MAX).app_bytes() / 4
        );
    }

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
