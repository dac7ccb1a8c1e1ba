//! Memory as the operating system sees it: file maps, anonymous arenas, and readings of what the
//! process and the device use. Everything unsafe about it stays behind this surface.

pub mod arena;
pub mod file;
pub mod usage;
