//! What Tapestry decides, as pure functions and plain values.
//! It must not know a client, a clock, the environment or randomness: all of these are inputs.

pub mod calendar;
pub mod capacity;
pub mod dependents;
pub mod metadata;
pub mod names;
pub mod placement;
pub mod podspec;
pub mod ports;
pub mod quantity;
pub mod reclaim;
pub mod request;
pub mod resources;
pub mod security;
pub mod selector;
pub mod services;
pub mod shape;
pub mod tokens;
pub mod volumes;

mod excerpt;
mod merge;
