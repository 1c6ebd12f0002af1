//! One binding's syncer: what it knows, what it plans, how it starts.
//! Bottom-up and top-down are the two halves of `nodes` and `pods`; there is one room for both directions.

pub mod bindings;
mod breaker;
mod catch_up;
mod connections;
mod contest;
pub mod csinodes;
pub mod dependents;
pub mod drift;
mod events;
pub mod explain;
pub mod guards;
mod json;
pub mod keeper;
pub mod leases;
pub mod nodes;
pub mod origin;
mod out_of_sync;
pub mod pair;
pub mod pods;
pub mod policies;
pub mod prerequisites;
mod refused;
mod reliance;
pub mod rights;
#[cfg(test)]
mod scene;
pub mod services;
mod serving;
pub mod start;
mod terms;
pub mod volumes;
pub mod warnings;
mod watches;
