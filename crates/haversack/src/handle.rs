//! The engine: one model, one budget, one thread that computes for every handle.

use crate::client::Client;
use crate::conversation::ConversationBuilder;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::options::EngineOptions;
use crate::plan::MemoryPlan;
use crate::prompt::Prompt;
use crate::thread::Pressure;
use haversack_conversations::scheduler::MemoryReport;
use haversack_conversations::session::{
    ListedSession, Owner, SessionOptions, SessionSettings, Sessions,
};
use haversack_engine::device::Thermal;
use haversack_engine::encoder::{Encoder, EncoderOptions};
use haversack_engine::runtime::adaptive;
use haversack_engine::runtime::{KvMemory, Runtime};
use haversack_engine::{
    Codec, KvForm, KvOptions, LoadOptions, Model, Policy, Repack, Retention, RuntimeOptions,
};
use haversack_memory::{Backing, bytes};
use std::path::PathBuf;
use std::sync::Arc;

/// A handle on a running engine: cheap to clone, usable from any thread. The engine ends, and saves its conversations,
/// when the last handle, conversation and answer is dropped.
#[derive(Clone)]
pub struct Engine(Arc<Client>);

impl Engine {
    /// A model file to run; [`EngineBuilder::start`] loads it.
    pub fn open(model: impl Into<PathBuf>) -> EngineBuilder {
        EngineBuilder {
            path: model.into(),
            memory: Ok(None),
            sessions: SessionOptions::default(),
            encoder: None,
            load: LoadOptions::default(),
            runtime: RuntimeOptions {
                retention: Retention::managed(),
                follow_device: true,
                ..RuntimeOptions::default()
            },
            options: EngineOptions::default(),
        }
    }

    /// Starts an engine over a runtime that is ready. Without sessions there are completions only.
    pub fn with_runtime(
        runtime: Runtime,
        sessions: Option<Sessions>,
        options: EngineOptions,
    ) -> Result<Engine, Error> {
        Ok(Engine(Arc::new(Client::start(runtime, sessions, options)?)))
    }

    /// A conversation by name; [`ConversationBuilder::open`] goes on with it or begins it.
    pub fn conversation(&self, name: impl Into<String>) -> ConversationBuilder {
        ConversationBuilder::new(self.0.clone(), name.into())
    }

    /// Conversations in the sessions folder.
    pub fn conversations(&self) -> Result<Vec<ListedSession>, Error> {
        Ok(self.0.list(Owner::default()).wait()?.sessions)
    }

    /// A text to go on with, outside of any conversation.
    pub fn complete(&self, text: impl Into<String>) -> Prompt {
        Prompt::completion(self.0.clone(), text.into())
    }

    /// The same with a text that is tokens already.
    pub fn complete_tokens(&self, tokens: Vec<u32>) -> Prompt {
        Prompt::tokens(self.0.clone(), tokens)
    }

    /// The direction of a text as the engine's encoder sees it: similar texts have a large scalar product. Computed on the
    /// caller's thread.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, Error> {
        let encoder = self.0.encoder().ok_or(Error::NoEncoder)?;
        Ok(encoder.embed(text)?.values().to_vec())
    }

    /// Where every byte of the budget is: the ledger, by conversation, zone and codec.
    pub fn memory(&self) -> Result<MemoryReport, Error> {
        self.0.memory(Owner::default()).wait()
    }

    /// The pages of keys and values, as the kernel reports them.
    pub fn kv_memory(&self) -> Result<KvMemory, Error> {
        self.0.kv_memory().wait()
    }

    /// Says how short of memory the system is, for systems that tell their applications.
    pub fn pressure(&self, pressure: Pressure) {
        self.0.set_pressure(pressure);
    }

    /// Says how hot the device is, for systems that tell their applications.
    pub fn thermal(&self, thermal: Thermal) {
        self.0.set_thermal(Some(thermal));
    }

    /// Saves every conversation that is not being answered and frees its memory, for an app that goes to the background. The
    /// next message of a conversation, or [`crate::Conversation::resume`], opens it again.
    pub fn suspend(&self) -> Result<(), Error> {
        self.0.suspend_all().wait()
    }

    /// Gives up caches, then idle conversations, until this many bytes are free; returns how many are.
    pub fn trim(&self, bytes: usize) -> Result<usize, Error> {
        self.0.trim(bytes).wait()
    }

    /// Counters and gauges as of the last step.
    pub fn metrics(&self) -> Metrics {
        self.0.metrics()
    }

    /// The model it runs.
    pub fn model(&self) -> &Arc<Model> {
        self.0.model()
    }

    /// The same engine by names and futures.
    pub fn client(&self) -> &Arc<Client> {
        &self.0
    }

    /// Refuses new requests, waits for accepted ones, saves every conversation.
    pub fn close(&self) -> Result<(), Error> {
        self.0.close()
    }
}

/// Bytes as a number, or as text such as `1500M` or `4G`.
pub trait ByteAmount {
    /// The number of bytes, or what is accepted.
    fn bytes(self) -> Result<u64, Error>;
}

impl ByteAmount for u64 {
    fn bytes(self) -> Result<u64, Error> {
        Ok(self)
    }
}

impl ByteAmount for &str {
    fn bytes(self) -> Result<u64, Error> {
        bytes::parse(self).map_err(|what| Error::Argument {
            name: "memory",
            what,
        })
    }
}

/// How an engine is to be started. What is not set follows from the model and the device.
#[must_use = "nothing is loaded before `start`"]
pub struct EngineBuilder {
    path: PathBuf,
    memory: Result<Option<u64>, Error>,
    sessions: SessionOptions,
    encoder: Option<PathBuf>,
    load: LoadOptions,
    runtime: RuntimeOptions,
    options: EngineOptions,
}

impl EngineBuilder {
    /// Ceiling of everything the engine allocates beyond its baseline. Unless said, it follows what the device has.
    pub fn memory(mut self, bytes: impl ByteAmount) -> EngineBuilder {
        self.memory = bytes.bytes().map(Some);
        self
    }

    /// Folder of the conversations' files. Unless said, conversations end with the engine.
    pub fn sessions(mut self, dir: impl Into<PathBuf>) -> EngineBuilder {
        let dir = dir.into();
        self.sessions.prefix_dir = Some(dir.join("prefixes"));
        self.sessions.dir = Some(dir);
        self
    }

    /// What conversations may hold, where context and budget are not to decide.
    pub fn session_settings(mut self, settings: SessionSettings) -> EngineBuilder {
        self.sessions.settings = settings;
        self
    }

    /// Folder of a sentence encoder. With one, answers see the turns that matter to the question.
    pub fn encoder(mut self, dir: impl Into<PathBuf>) -> EngineBuilder {
        self.encoder = Some(dir.into());
        self
    }

    /// Folder for what is computed once for each model: packed weights, calibration.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> EngineBuilder {
        let dir = dir.into();
        self.load.repack = Repack::Into(dir.join("packed"));
        self.runtime.cache_dir = Some(dir);
        self
    }

    /// Tokens of context, at most what the model was trained for.
    pub fn context(mut self, tokens: usize) -> EngineBuilder {
        self.load.context = Some(tokens);
        self
    }

    /// How keys and values are stored; int4 unless said.
    pub fn kv(mut self, codec: Codec) -> EngineBuilder {
        self.runtime.kv = KvOptions::new(KvForm::both(codec.form()));
        self
    }

    /// Where the pages of keys and values come from; private memory unless said.
    pub fn kv_memory(mut self, backing: Backing) -> EngineBuilder {
        self.runtime.kv_memory = backing;
        self
    }

    /// Which rows stay when memory ends. Unless said, conversations decide; any other policy is for completions only.
    pub fn policy(self, policy: Policy) -> EngineBuilder {
        self.retention(Retention::by(policy))
    }

    /// The same with all of its parameters.
    pub fn retention(mut self, retention: Retention) -> EngineBuilder {
        self.runtime.retention = retention;
        self
    }

    /// Threads that compute; one for each core unless said.
    pub fn threads(mut self, threads: usize) -> EngineBuilder {
        self.runtime.threads = threads;
        self.load.threads = threads;
        self
    }

    /// Requests that are computed at the same time; 8 unless said.
    pub fn batch(mut self, requests: usize) -> EngineBuilder {
        self.options.batch = requests;
        self
    }

    /// Requests that may wait; 64 unless said. Beyond that they are refused.
    pub fn queue(mut self, requests: usize) -> EngineBuilder {
        self.options.queue = requests;
        self
    }

    /// Finished requests whose keys and values are kept for prompts that begin alike; 16 unless said.
    pub fn prefix_cache(mut self, requests: usize) -> EngineBuilder {
        self.options.prefix_cache = requests;
        self
    }

    /// What the model takes with these options, from its file's metadata alone: nothing is loaded.
    pub fn plan(self) -> Result<MemoryPlan, Error> {
        MemoryPlan::new(&self.path, self.load.context, &self.runtime, self.memory?)
    }

    /// Loads the model and starts the engine's thread.
    pub fn start(mut self) -> Result<Engine, Error> {
        let budget = self.memory?;
        self.runtime.budget_bytes = budget.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let model = Model::load(&self.path, &self.load, &mut |_, _| ())?;
        self.runtime = self.runtime.with_device_budget(&model);
        if adaptive::needs_plan(&self.runtime) {
            self.runtime = adaptive::resolve(&model, &self.runtime)?;
        }
        let runtime = Runtime::new(model, &self.runtime)?;
        let sessions = match self.runtime.retention.policy {
            Policy::Streams => Some(Sessions::new(&runtime, self.sessions)?),
            _ => None,
        };
        let sessions = match (sessions, self.encoder) {
            (Some(sessions), Some(dir)) => {
                let encoder = Encoder::open(&dir, &EncoderOptions::default())?;
                Some(sessions.with_encoder(Arc::new(encoder)))
            }
            (sessions, _) => sessions,
        };
        Engine::with_runtime(runtime, sessions, self.options)
    }
}
