//! Whole syncers on real control planes. One binary, so that all tests share one fleet; two tests at a time.
//! A test has its own clusterID, binding, namespaces and physical nodes, and leaves the others' alone.
//!
//! | room | what it proves |
//! |---|---|
//! | [`nodes`] | what is lent, how virtual nodes look, when they go |
//! | [`pods`], [`kubelet`] | down, up, deletion, the door; with a kubelet that the test plays itself |
//! | [`hostile`] | forged mappings, strangers, neighbours: who touches what |
//! | [`calm`] | identity and idleness, told by the API servers' audit logs |
//! | [`process`] | the real binary: crashes, signals, failures before people's eyes, endpoints |
//! | [`api`], [`refusals`], [`watch`] | what real API servers say to our objects, calls and watches |

mod api;
mod calm;
mod hostile;
mod kubelet;
mod nodes;
mod pods;
mod process;
mod refusals;
mod watch;

mod line;
mod looks;
mod loom;
mod stub;
mod timing;
