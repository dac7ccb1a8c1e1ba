#![forbid(unsafe_code)]
//! The model catalogue ([`catalogue`]) and models of the hub beside it ([`repository`]), fetching them ([`fetch`]), and the folder where
//! they live ([`home`], [`installed`]).
//!
//! What a killed or interrupted fetch must not leave behind is registered in [`tidy`]. This crate draws nothing: a fetch
//! reports through [`progress::FetchProgress`].

pub mod catalogue;
pub mod default_model;
mod error;
pub mod fetch;
pub mod home;
pub mod installed;
pub mod progress;
pub mod repository;
pub mod tidy;

pub use error::HubError;
