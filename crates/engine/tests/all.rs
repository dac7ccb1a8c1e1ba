//! Tests of models, the runtime, what a cache costs: one program, because each costs a link.

mod adaptive;
mod arch;
mod arch_defects;
mod bounded;
mod chat_guard;
mod common;
mod company;
mod encoder_common;
mod encoder_hostile;
mod faults;
mod gguf_synth;
mod golden;
mod guard;
mod hide;
mod not_a_number;
mod sample;
mod samplers;
mod shifts;
