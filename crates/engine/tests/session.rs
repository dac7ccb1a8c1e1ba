//! Sessions over a tiny model: turns come and go, files survive, errors leave everything as it was.

mod common;

use haversack::run::GenerateOptions;
use haversack::sample::{SampleOptions, Sampler};
use haversack::session::relevance::Relevance;
use haversack::session::turns::Place;
use haversack::session::{Answer, SessionError, SessionId, SessionOptions, Sessions};
use haversack::{Model, Retention, Runtime, RuntimeOptions};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn main() {}
