//! What every handler shares: the engine, and what is kept besides it.

use crate::admission::{Admission, Subscribers};
use crate::auth::Auth;
use crate::connections::Connections;
use crate::encoder::SharedEncoder;
use crate::fail::Fail;
use crate::limits;
use haversack::memory::clock::since_1970;
use haversack::{Client, Engine, MemoryReport, Owner};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

/// What a handler gets.
pub type Server = axum::extract::State<Arc<ServerState>>;

pub struct ServerState {
    pub engine: Engine,
    pub auth: Arc<Auth>,
    pub(crate) encoder: SharedEncoder,
    /// Told where a request names no model.
    pub model_name: String,
    pub has_sessions: bool,
    /// When the server started, in seconds since 1970.
    pub(crate) created: u64,
    /// The last memory report of each owner. Requests that come while one is made wait for that one.
    last_reports: Mutex<HashMap<Owner, (Instant, Arc<MemoryReport>)>>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) admission: Admission,
    /// Places for clients of `/v1/events`.
    pub(crate) subscribers: Subscribers,
}

impl ServerState {
    pub fn new(engine: Engine, auth: Auth, model_name: String, has_sessions: bool) -> ServerState {
        let owners = auth.keys.iter().map(|(owner, _)| *owner);
        ServerState {
            subscribers: Subscribers::new(owners),
            engine,
            auth: Arc::new(auth),
            encoder: SharedEncoder::default(),
            model_name,
            has_sessions,
            created: since_1970().as_secs(),
            last_reports: Mutex::default(),
            connections: Arc::default(),
            admission: Admission::default(),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        self.engine.client()
    }

    /// A memory report that is at most [`limits::REPORT_AGE`] old.
    pub(crate) async fn memory_report(&self, owner: Owner) -> Result<Arc<MemoryReport>, Fail> {
        let mut last = self.last_reports.lock().await;
        if let Some((when, report)) = last.get(&owner)
            && when.elapsed() < limits::REPORT_AGE
        {
            return Ok(report.clone());
        }
        let report = Arc::new(self.client().memory(owner).await?);
        last.insert(owner, (Instant::now(), report.clone()));
        Ok(report)
    }
}
