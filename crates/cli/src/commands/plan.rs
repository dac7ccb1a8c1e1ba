//! `plan`: what fits a device, and what to choose for it, from a file's metadata alone.

use crate::args;
use anyhow::Result;

pub fn plan(_args: &args::Plan, _as_json: bool) -> Result<()> {
    Ok(())
}
