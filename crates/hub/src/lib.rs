#![forbid(unsafe_code)]
//! The model catalogue ([`catalogue`]), fetching its models ([`fetch`]), and the folder where they live ([`home`]).
//!
//! What a killed or interrupted fetch must not leave behind is registered in [`tidy`]. This crate draws nothing: a fetch
//! reports through [`progress::FetchProgress`].

pub mod catalogue;
mod error;
pub mod fetch;
pub mod home;
pub mod progress;
pub mod tidy;

pub use error::HubError;
