//! What a form of the cache costs: mean keys ([`calibrate`]), what hurts each layer ([`probe`]) and the plan made of it
//! ([`adaptive`]), and what leaving rows would cost ([`guard`]).

pub mod adaptive;
pub mod calibrate;
mod figures;
pub mod guard;
pub mod probe;
