//! What a model takes, and whether that fits a device.
//!
//! Pure: a device is its RAM, a model its metadata. What an app may take of the RAM is an assumption, and said as one.

use haversack::engine::model::{Activation, Arch, Config, LayerConfig};
use haversack::engine::runtime::plan::{self, ComputeSetting, MemoryNeeds};
use haversack::engine::{Codec, KvOptions};
use haversack::memory::bytes::human;
use haversack_hub::catalogue::CatalogueModel;

/// Of a phone's RAM, what one app in the foreground may hold before the system ends it: about half,
/// the rest is the system's and the launcher's.
const PHONE_SHARE: (u64, u64) = (1, 2);
/// Of a machine that is there to serve: most of it.
const SERVER_SHARE: (u64, u64) = (9, 10);
/// Devices with more RAM than this count as machines, not as phones.
const PHONE_RAM_MAX: u64 = 16 << 30;
/// The program, its tokenizer and its stacks, beside weights and budget.
pub const PROCESS_BYTES: u64 = 48 << 20;
/// Where weights alone fill an app's share, keys and values may still have this part of it: pages of
/// weights can be read again, keys and values cannot.
const SHORT_SHARE: u64 = 4;
/// Tokens read at once at least; larger portions are taken where the budget has room.
pub const PORTION: usize = 32;

/// A device, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub ram_bytes: u64,
}

impl Device {
    pub fn of(ram_bytes: u64) -> Device {
        Device { ram_bytes }
    }

    pub fn is_phone(self) -> bool {
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

    pub fn whole(&self, codec: Codec) -> u64 {
        self.needs(codec, self.config.context_trained).total() as u64
    }
}

/// Tokens of a conversation worth having.
const CONVERSATION_TOKENS: usize = 4096;
/// Of the RAM, what a model may take at most beside a system that does little else.
const TIGHT_SHARE: (u64, u64) = (9, 10);

/// How a model goes with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceFit {
    /// Weights and a conversation take what an app may take.
    Fits,
    /// They take more, but the RAM holds them: other programs will feel it.
    Tight,
    TooLarge,
}

impl DeviceFit {
    pub fn name(self) -> &'static str {
        match self {
            DeviceFit::Fits => "fits",
            DeviceFit::Tight => "tight",
            DeviceFit::TooLarge => "too large",
        }
    }
}

impl Device {
    pub fn verdict(self, weights_bytes: u64, conversation_bytes: u64) -> DeviceFit {
        let needed = weights_bytes
            .saturating_add(conversation_bytes)
            .saturating_add(PROCESS_BYTES);
        let (of, all) = TIGHT_SHARE;
        match needed {
            needed if needed <= self.app_bytes() => DeviceFit::Fits,
            needed if needed <= self.ram_bytes / all * of => DeviceFit::Tight,
            _ => DeviceFit::TooLarge,
        }
    }
}

/// What a conversation takes with a model of the catalogue, as `chat` keeps it; `None` where the engine cannot run it.
pub fn conversation_bytes(model: &CatalogueModel, threads: usize) -> Option<u64> {
    let config = config_of(model)?;
    let figures = Figures {
        config: &config,
        weights_bytes: model.bytes(),
        threads,
        options: &|codec| KvOptions::new(crate::args::KvPair::both(codec).form(None)),
    };
    let tokens = CONVERSATION_TOKENS.min(config.context_trained);
    Some(figures.needs(Codec::Int4, tokens).total() as u64)
}

/// Whether the engine has this architecture.
pub fn is_known(architecture: &str) -> bool {
    Arch::ALL.iter().any(|arch| arch.name() == architecture)
}

/// As much of a model's description as memory depends on, before there is a file.
fn config_of(model: &CatalogueModel) -> Option<Config> {
    let name = model.architecture.as_deref()?;
    let arch = Arch::ALL.into_iter().find(|arch| arch.name() == name)?;
    let shape = model.shape?;
    let layer = LayerConfig {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        ffn: shape.ffn,
        rope: 0,
        window: None,
        score_scale: 1.0,
    };
    Some(Config {
        arch,
        name: model.name.clone(),
        dim: shape.dim,
        vocab: shape.vocab,
        context_trained: shape.context,
        context: shape.context,
        norm_eps: 1e-5,
        embed_scale: 1.0,
        activation: Activation::Silu,
        logit_cap: None,
        layers: vec![layer; shape.layers],
        ropes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_hub::catalogue::catalogue;

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
    fn verdicts() {
        let device = Device::of(4 << 30);
        let verdict = |weights: u64| device.verdict(weights, 100 << 20);
        assert_eq!(verdict(1 << 30), DeviceFit::Fits);
        assert_eq!(verdict(2 << 30), DeviceFit::Tight);
        assert_eq!(verdict(7 << 29), DeviceFit::TooLarge);
        assert_eq!(device.verdict(u64::MAX, u64::MAX), DeviceFit::TooLarge);
        assert_eq!(Device::of(0).verdict(0, 0), DeviceFit::TooLarge);
    }

    #[test]
    fn every_model_of_the_catalogue_can_be_planned_or_is_said_not_to_be_known() {
        for model in &catalogue().models {
            let known = model.architecture.as_deref().is_some_and(is_known);
            assert_eq!(
                conversation_bytes(model, 2).is_some(),
                known,
                "{}",
                model.name
            );
        }
        let bytes = |name| conversation_bytes(catalogue().find(name).unwrap(), 2).unwrap();
        assert!(bytes("tiny") < bytes("llama-3.2-3b"));
        assert!(
            bytes("smollm2-1.7b") > 4 * bytes("qwen2.5-1.5b"),
            "32 KV heads, not 2"
        );
    }
}
