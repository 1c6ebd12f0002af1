//! How we talk to one API server: connect, probe, watch, feed, call, gate.
//! Decides nothing: what to call comes from a plan, what an answer means is settled by a model.

pub mod body;
pub mod call;
pub mod connect;
pub mod feed;
mod frames;
pub mod gate;
pub mod kind;
pub mod kubeconfig;
pub mod lead;
pub mod list;
pub mod no_answer;
pub mod object;
mod plugin;
pub mod probe;
pub mod refusal;
pub mod served;
pub mod watch;
pub mod watches;

pub use call::{Answer, Call, CarryMarks, Need, PodRef, Shape, Side, Sub, Target, Verb, VolumeMarks};
pub use connect::Cluster;
pub use gate::Gate;
pub use kind::Kind;
pub use lead::Lead;
pub use object::{Name, Rv, Uid};
pub use refusal::Refusal;
