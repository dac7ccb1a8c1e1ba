//! Tests of the store, its policies and files: one program, because each costs a link.

mod common;
mod company;
mod evict_rows;
mod faults;
mod hide;
mod image;
mod image_format;
mod mapped;
mod model;
mod plans;
mod policy;
mod recode_ahead;
mod release;
mod rows;
mod size;
mod store;
