//! The engine: opened, asked, closed.

use crate::answer::NativeAnswer;
use crate::conversation::NativeConversation;
use crate::process::InProcess;
use crate::prompt::PromptOptions;
use crate::wait::{exception, work};
use haversack::engine::Codec;
use haversack::engine::device::Thermal;
use haversack::{Engine, EngineBuilder, Error, Pressure};
use pyo3::prelude::*;
use std::path::PathBuf;

/// Name, bytes, milliseconds since 1970, is in memory.
type ListedFields = (String, u64, u64, bool);
/// Weights, context, bytes of a token, bytes of the context, tokens that the limit holds.
type PlanFields = (u64, usize, usize, usize, Option<usize>);
/// Names and values of the ledger, and each sequence: name, position, bytes, is active.
type MemoryFields = (Vec<(&'static str, Option<usize>)>, Vec<SequenceFields>);
type SequenceFields = (Option<String>, u64, usize, bool);

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct EngineOptions {
    memory: Option<String>,
    sessions_dir: Option<PathBuf>,
    encoder_dir: Option<PathBuf>,
    cache_dir: Option<PathBuf>,
    kv: Option<String>,
    context: Option<usize>,
    threads: Option<usize>,
    batch: Option<usize>,
    queue: Option<usize>,
}

impl EngineOptions {
    fn builder(self, py: Python<'_>, model: PathBuf) -> PyResult<EngineBuilder> {
        let mut builder = Engine::open(model);
        if let Some(bytes) = &self.memory {
            builder = builder.memory(bytes.as_str());
        }
        if let Some(dir) = self.sessions_dir {
            builder = builder.sessions(dir);
        }
        if let Some(dir) = self.encoder_dir {
            builder = builder.encoder(dir);
        }
        if let Some(dir) = self.cache_dir {
            builder = builder.cache_dir(dir);
        }
        if let Some(name) = &self.kv {
            let codec: Result<Codec, _> = name.parse();
            builder = builder.kv(codec.map_err(|_| {
                let accepted = Codec::ALL.map(Codec::name).join(", ");
                exception(py, "InvalidInput", format!("kv: accepted: {accepted}"))
            })?);
        }
        if let Some(tokens) = self.context {
            builder = builder.context(tokens);
        }
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(requests) = self.batch {
            builder = builder.batch(requests);
        }
        if let Some(requests) = self.queue {
            builder = builder.queue(requests);
        }
        Ok(builder)
    }
}

/// What a model takes of the memory limit. Loads nothing.
#[pyfunction]
pub(crate) fn plan(py: Python<'_>, model: PathBuf, options: EngineOptions) -> PyResult<PlanFields> {
    let builder = options.builder(py, model)?;
    let plan = work(py, || builder.plan())?;
    let (context, token) = (plan.context, plan.token_bytes);
    Ok((
        plan.weights_bytes,
        context,
        token,
        plan.context_bytes,
        plan.tokens_max,
    ))
}

#[pyclass(frozen, name = "Engine", module = "haversack._native")]
pub(crate) struct NativeEngine(InProcess<Engine>);

impl NativeEngine {
    fn work<T: Send + 'static>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(Engine) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let engine = self.0.get(py)?.clone();
        work(py, || ask(engine))
    }
}

#[pymethods]
impl NativeEngine {
    #[new]
    fn open(py: Python<'_>, model: PathBuf, options: EngineOptions) -> PyResult<NativeEngine> {
        let builder = options.builder(py, model)?;
        let engine = work(py, || builder.start())?;
        Ok(NativeEngine(InProcess::new(engine)))
    }

    fn conversation(
        &self,
        py: Python<'_>,
        name: String,
        system: String,
    ) -> PyResult<NativeConversation> {
        self.work(py, |engine| engine.conversation(name).system(system).open())
            .map(NativeConversation::new)
    }

    fn conversations(&self, py: Python<'_>) -> PyResult<Vec<ListedFields>> {
        let listed = self.work(py, |engine| engine.conversations())?;
        let fields = listed
            .into_iter()
            .map(|l| (l.name, l.bytes, l.saved_ms, l.is_open));
        Ok(fields.collect())
    }

    fn complete(
        &self,
        py: Python<'_>,
        text: String,
        options: PromptOptions,
    ) -> PyResult<NativeAnswer> {
        self.work(py, |engine| options.apply(engine.complete(text)).send())
            .map(NativeAnswer::new)
    }

    fn embed(&self, py: Python<'_>, text: String) -> PyResult<Vec<f32>> {
        self.work(py, move |engine| engine.embed(&text))
    }

    fn memory(&self, py: Python<'_>) -> PyResult<MemoryFields> {
        let report = self.work(py, |engine| engine.memory())?;
        let ledger = &report.ledger;
        let fields = vec![
            ("limit_bytes", ledger.budget),
            ("total_bytes", Some(ledger.total())),
            ("peak_bytes", Some(ledger.peak)),
            ("kv_bytes", Some(ledger.kv_live)),
            ("kv_peak_bytes", Some(ledger.kv_peak)),
            ("tables_bytes", Some(ledger.tables)),
            ("scratch_bytes", Some(ledger.scratch)),
            ("side_bytes", Some(ledger.side)),
            ("heap_bytes", Some(ledger.heap)),
            ("promised_bytes", Some(report.promised_bytes)),
            ("idle_bytes", Some(report.idle_bytes)),
            ("weights_bytes", Some(report.weights_bytes)),
            ("active", Some(report.active)),
            ("waiting", Some(report.waiting)),
        ];
        let sequences = report.sequences.into_iter().map(|sequence| {
            let session = sequence.owner.session();
            let name = session.map(|session| session.stats.name.clone());
            (name, sequence.position, sequence.bytes, sequence.is_active)
        });
        Ok((fields, sequences.collect()))
    }

    fn pressure(&self, py: Python<'_>, level: u8) -> PyResult<()> {
        self.0.get(py)?.pressure(match level {
            0 => Pressure::Nominal,
            1 => Pressure::Warning,
            _ => Pressure::Critical,
        });
        Ok(())
    }

    fn thermal(&self, py: Python<'_>, level: u8) -> PyResult<()> {
        self.0.get(py)?.thermal(match level {
            0 => Thermal::Nominal,
            1 => Thermal::Fair,
            2 => Thermal::Serious,
            _ => Thermal::Critical,
        });
        Ok(())
    }

    fn suspend(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |engine| engine.suspend())
    }

    fn trim(&self, py: Python<'_>, bytes: usize) -> PyResult<usize> {
        self.work(py, move |engine| engine.trim(bytes))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.work(py, |engine| engine.close())
    }
}
