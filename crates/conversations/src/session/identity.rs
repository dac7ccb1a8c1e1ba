//! The identity of a file: model, KV format, tokenizer, tenant and session name.

use super::error::{SessionError, SessionResult};
use super::owner::Owner;
use haversack_engine::Model;
use haversack_engine::runtime::Runtime;

/// The first line of an identity.
pub(super) const VERSION: &str = "haversack session 1";

/// What a file depends on. A session resumes only where all of it is equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub model: String,
    pub kv: String,
    pub tokenizer: String,
    pub tenant: String,
}

impl Identity {
    pub(super) fn of(runtime: &Runtime, tenant: &str) -> Identity {
        let model = runtime.model();
        Identity {
            model: model.fingerprint().to_hex()[..32].to_owned(),
            kv: kv_format(runtime),
            tokenizer: tokenizer_hash(model),
            tenant: tenant.to_owned(),
        }
    }

    /// Of files of one owner.
    pub(super) fn of_owner(&self, owner: Owner) -> Identity {
        Identity {
            tenant: owner.tenant(&self.tenant),
            ..self.clone()
        }
    }

    pub(super) fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("model", &self.model),
            ("kv", &self.kv),
            ("tokenizer", &self.tokenizer),
            ("tenant", &self.tenant),
        ]
    }

    /// Lines of a name and a value; the session's own name comes last.
    pub(super) fn to_bytes(&self, session: &str) -> Vec<u8> {
        let mut text = format!("{VERSION}\n");
        for (name, value) in self.fields() {
            text.push_str(&format!("{name} {}\n", value.escape_debug()));
        }
        text.push_str(&format!("session {session}\n"));
        text.into_bytes()
    }

    /// Compares the identity of a file with this one.
    pub(super) fn check(&self, session: &str, bytes: &[u8]) -> SessionResult {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        let error = |what, saved: &str, here: &str| SessionError::Identity {
            name: session.to_owned(),
            what,
            saved: saved.chars().take(80).collect(),
            here: here.to_owned(),
        };
        let version = lines.next().unwrap_or_default();
        if version != VERSION {
            return Err(error("format", version, VERSION));
        }
        for (what, here) in self.fields().into_iter().chain([("session", session)]) {
            let saved = lines.next().unwrap_or_default();
            let saved = saved.strip_prefix(what).unwrap_or_default().trim_start();
            let here = here.escape_debug().to_string();
            if saved != here {
                return Err(error(what, saved, &here));
            }
        }
        Ok(())
    }
}

/// A hash of all pieces.
pub(super) fn tokenizer_hash(model: &Model) -> String {
    let mut pieces = blake3::Hasher::new_derive_key("haversack tokenizer v1");
    let tokenizer = model.tokenizer();
    for id in 0..tokenizer.len() as u32 {
        let piece = tokenizer.piece_raw(id).unwrap_or_default();
        pieces.update(&(piece.len() as u32).to_le_bytes());
        pieces.update(piece);
    }
    pieces.finalize().to_hex()[..16].to_owned()
}

/// The lines that the identity of a session and of its prefix file have in common: those of [`Identity::fields`], behind
/// the version.
pub(super) fn shared_lines(identity: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(identity).ok()?;
    let lines: Vec<&str> = text.lines().skip(1).take(4).collect();
    (lines.len() == 4).then(|| lines.join("\n"))
}

/// The format of keys and values: equal where the bytes mean the same.
fn kv_format(runtime: &Runtime) -> String {
    let store = runtime.store();
    let mut hasher = blake3::Hasher::new_derive_key("haversack kv format v1");
    for (i, layer) in store.layers().iter().enumerate() {
        hasher.update(format!("{layer:?}").as_bytes());
        for x in store.mean(i).unwrap_or_default() {
            hasher.update(&x.to_bits().to_le_bytes());
        }
    }
    let zones = store.zones();
    hasher.update(format!("{zones:?} {:?}", runtime.model().config().ropes).as_bytes());
    format!(
        "{}-{}",
        runtime.kv().name(),
        &hasher.finalize().to_hex()[..16]
    )
}
