//! One binding's syncer: what it knows, what it plans, how it starts.
//! Bottom-up and top-down are the two halves of `nodes` and `pods`; there is one room for both directions.

pub mod bindings;
pub mod grounds;
mod json;
pub mod leases;
pub mod nodes;
mod notes;
pub mod origin;
pub mod pair;
pub mod pods;
pub mod policies;
#[cfg(test)]
mod scene;
pub mod start;
