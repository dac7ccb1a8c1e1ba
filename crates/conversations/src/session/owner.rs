//! Whose sessions and requests these are. An owner sees what is its own and nothing of any other owner: names, files,
//! prefixes and reports are kept apart by it. Users are parts of an owner: they share its sessions, not its prefixes.

use super::names::{self, BadName, NAME_BYTES_MAX};
use std::fmt;

/// The name of an owner, by the rule of session names; empty where there is one owner only.
///
/// It holds its bytes itself: keys of caches have an owner and are copied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Zeros behind the name.
    bytes: [u8; NAME_BYTES_MAX],
    len: u8,
}

impl Owner {
    pub fn new(name: &str) -> Result<Owner, BadName> {
        names::check(name)?;
        let mut owner = Owner::default();
        owner.bytes[..name.len()].copy_from_slice(name.as_bytes());
        owner.len = name.len() as u8;
        Ok(owner)
    }

    /// Of one of its sessions.
    pub fn session(self, name: &str) -> SessionName<'_> {
        SessionName { owner: self, name }
    }

    /// One of its users.
    pub fn user(self, user: u64) -> Requester {
        Requester { owner: self, user }
    }

    pub fn name(&self) -> &str {
        let name = std::str::from_utf8(&self.bytes[..usize::from(self.len)]);
        name.unwrap_or_default()
    }

    /// There is one owner only, or this one was there first.
    pub fn is_unnamed(&self) -> bool {
        self.len == 0
    }

    /// Whose sessions share an opening with this one's. What the model begins with by itself tells nothing of an owner: it
    /// is there once for all.
    pub(super) fn sharing(self, opening: &str) -> Owner {
        match opening.is_empty() {
            true => Owner::default(),
            false => self,
        }
    }

    /// The tenant of its files: no owner's name has a slash.
    pub(super) fn tenant(&self, tenant: &str) -> String {
        match self.is_unnamed() {
            true => tenant.to_owned(),
            false => format!("{tenant}/{self}"),
        }
    }
}

impl Default for Owner {
    fn default() -> Owner {
        Owner {
            bytes: [0; NAME_BYTES_MAX],
            len: 0,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?})", self.name())
    }
}

/// Who asks: an owner, and which of its users. The scheduler serves owners in turn, and the users of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requester {
    pub owner: Owner,
    pub user: u64,
}

impl From<u64> for Requester {
    /// A user of the unnamed owner.
    fn from(user: u64) -> Requester {
        Owner::default().user(user)
    }
}

/// A session is named by its owner and by a name that is its own among that owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionName<'a> {
    pub owner: Owner,
    pub name: &'a str,
}

impl<'a, S: AsRef<str> + ?Sized> From<&'a S> for SessionName<'a> {
    /// Of the unnamed owner.
    fn from(name: &'a S) -> SessionName<'a> {
        Owner::default().session(name.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_and_checked() {
        let long = "x".repeat(NAME_BYTES_MAX);
        for name in ["anna", "a.b-c_1", &long] {
            assert_eq!(Owner::new(name).unwrap().to_string(), name);
        }
        assert!(Owner::new("").is_err() && Owner::new("a/b").is_err());
        assert!(Owner::default().is_unnamed());
        assert_eq!(Owner::default().tenant("t"), "t");
        assert_eq!(Owner::new("anna").unwrap().tenant("t"), "t/anna");
    }
}
