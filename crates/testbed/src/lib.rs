//! Real Kubernetes control planes and nodes as child processes, for tests and demonstrations.
//! Must not be linked into anything that ships, and must leave nothing behind: no process, no folder.
//! | room | contents |
//! |---|---|
//! | [`mod@fleet`] | one virtual and two physical clusters, shared by all tests of a process |
//! | [`cluster`] | one control plane: etcd, kube-apiserver, and what its [`ClusterConfig`] asks for |
//! | [`node`] | a real node: kubelet, containerd and runc, in namespaces of its own |
//! | [`supervisor`] | the process that kills and cleans up when we end, however we end |
//! | [`objects`] | create, get, list, patch, delete of plain JSON |
//! | [`builders`] | `pod("web").on("vnode-a-1").cpu("250m").build()` |
//! | [`mod@eventually`] | wait for a condition with a deadline; fail with what was seen |
//! | [`accounts`] | the syncers' ServiceAccounts, with the rights of `deploy/rbac` |
//! | [`proxy`] | a proxy before an API server that injects faults |
//! | [`distance`] | a relay before an API server that adds latency |
//! | [`invariants`] | what must hold between two clusters; returns violations as text |
//! | [`audit`] | which requests a cluster answered, by user agent |

pub mod accounts;
pub mod address;
pub mod audit;
pub mod binaries;
pub mod builders;
pub mod certificates;
pub mod cluster;
pub mod distance;
pub mod eventually;
pub mod fleet;
pub mod kubeconfig;
pub mod node;
pub mod objects;
pub mod proxy;
pub mod supervisor;
pub mod world;

pub use cluster::{Cluster, ClusterConfig, Part};
pub use distance::Distance;
pub use eventually::eventually;
pub use fleet::{Fleet, fleet};
pub use node::RealNode;
pub use objects::Objects;
pub use proxy::{FaultProxy, Storm};
pub use tapestry_api::invariants;
