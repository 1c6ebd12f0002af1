//! How decisions meet clusters: the Model trait, the desk that orders its work, the loop that runs it, tables, leader
//! election; and what every daemon needs: clock, health and metrics endpoints, telemetry. Knows no Kubernetes kind except
//! the Lease of the election.

pub mod clock;
pub mod desk;
pub mod lead;
pub mod model;
pub mod run;
pub mod serve;
pub mod table;
pub mod tasks;
pub mod telemetry;

pub use clock::Now;
pub use desk::Desk;
pub use model::{Dirty, Listed, Model, Plan, Reason};
pub use table::Table;
