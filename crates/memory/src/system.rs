//! The operating system as an implementation of the crate's IO traits.

/// Makes every call for real: [`crate::SlabIo`] and [`crate::JournalIo`] by their provided methods.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIo;
