#![forbid(unsafe_code)]
#![warn(missing_docs)]
//! Haversack runs language models from GGUF files inside a byte budget.
//!
//! ```no_run
//! use haversack::{Engine, Pressure};
//!
//! # fn main() -> Result<(), haversack::Error> {
//! let engine = Engine::open("model.gguf").memory("1500M").sessions("sessions/").start()?;
//!
//! let anna = engine.conversation("anna").system("You answer in one sentence.").open()?;
//! let mut answer = anna.say("My cat is called Miso.").max_tokens(200).send()?;
//! for piece in answer.by_ref() {
//!     print!("{}", piece?);
//! }
//! println!("\n{}", answer.report());
//!
//! let text = engine.complete("The capital of France is").max_tokens(16).run()?;
//! println!("{text}, {} bytes held", engine.memory()?.ledger.total());
//! engine.pressure(Pressure::Critical);
//! # Ok(())
//! # }
//! ```
//!
//! Dropping an answer cancels it. `anna.say("…").await` gives the same answer as futures, on any async runtime. One
//! thread owns the model, the cache and the conversations; handles send it commands:
//!
//! ```text
//! Engine, Conversation, Prompt ─► Client ─► commands ─► thread ─► Driver::step ─► Scheduler
//!        Answer ◄───────────── events ◄──────────────────┘
//! ```
//!
//! The layers below are public for programs that build their own: [`engine`] runs one model step by step, [`scheduler`]
//! and [`session`] share it, [`Driver`] drives both without a thread.

pub use haversack_cache as cache;
pub use haversack_conversations::{scheduler, session};
pub use haversack_engine as engine;
pub use haversack_gguf as gguf;
#[cfg(feature = "grammar")]
pub use haversack_grammar as grammar;
pub use haversack_kernels as kernels;
pub use haversack_memory as memory;
pub use haversack_text as text;

pub mod alerts;
mod answer;
mod channel;
mod client;
mod conversation;
mod driver;
mod error;
mod fact_search;
mod found_facts;
mod handle;
mod metrics;
mod notices;
mod options;
mod page;
mod places;
mod plan;
mod prompt;
mod report;
mod sessions;
mod speed;
#[cfg(feature = "grammar")]
mod structured;
mod thread;

pub use answer::{Answer, AnswerStream};
pub use channel::Reply;
pub use client::{AnswerEvents, AnswerStopper, Client, EngineHealth, EngineStatus};
pub use conversation::{Conversation, ConversationBuilder};
pub use driver::Driver;
pub use error::{Error, ErrorKind};
pub use fact_search::{FactSearch, SearchStop};
pub use found_facts::FoundFact;
pub use handle::{ByteAmount, Engine, EngineBuilder};
pub use haversack_conversations::scheduler::MemoryReport;
pub use haversack_conversations::session::{FactView, Owner, Requester, SessionName, TurnView};
pub use metrics::{CacheCounters, Metrics};
pub use notices::{Notice, NoticeReceiver};
pub use options::{EngineOptions, EventOptions};
pub use page::ConversationPage;
pub use plan::MemoryPlan;
pub use prompt::Prompt;
pub use report::{AnswerEvent, ContextSeen, EventReceiver, Logprob, Report};
pub use sessions::{ConversationList, ConversationView, History, Rewound, VIEW_TURNS_MAX};
pub use thread::Pressure;
