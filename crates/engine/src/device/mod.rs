//! Limits that follow from readings of the device. Pure: readings come in as data with their time,
//! decisions go out as data; nothing here opens a file or reads a clock.

pub mod governor;

pub use governor::{DeviceBudget, Governor, WindowChange};
pub use haversack_memory::Thermal;
