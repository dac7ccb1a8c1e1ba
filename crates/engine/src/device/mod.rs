//! What the device says, and what follows from it. Pure: readings come in as data with their time,
//! decisions go out as data; nothing here opens a file or looks at a clock.

pub mod governor;

pub use governor::{Governor, WindowChange};
pub use haversack_memory::Thermal;
