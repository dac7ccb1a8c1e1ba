//! What sessions may hold: what was set for them as far as there is room.

use super::limits::{SessionLimits, SessionRoom, SessionSettings};
use super::open_session::GrantedLimits;

/// What sessions are granted.
pub(super) struct SessionGrants {
    /// What one session has room for alone.
    pub room: SessionRoom,
    /// What it may hold where nothing else is set.
    pub usual: SessionLimits,
    /// Capacity that the device has room for, and why it changed last.
    pub device: (usize, String),
}

impl SessionGrants {
    /// What a saved session may hold here: what was set for it as far as there is room.
    pub fn grant(&self, own: SessionSettings, all: SessionSettings) -> GrantedLimits<'_> {
        let bound = self.room.bound;
        let device = (self.device.0, &self.device.1[..]);
        let of = |settings: SessionSettings| {
            let limits = SessionLimits::of(&settings, &self.room).ok()?;
            Some(GrantedLimits {
                settings,
                limits,
                bound,
                device,
            })
        };
        let less = SessionSettings {
            capacity: None,
            answer_max: None,
            persistent_max: None,
            ..own
        };
        let granted = of(own.or(all)).or_else(|| of(less.or(all)));
        granted.unwrap_or(GrantedLimits {
            settings: all,
            limits: self.usual,
            bound,
            device,
        })
    }
}
