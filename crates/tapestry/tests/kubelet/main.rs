//! Virtual pods in real containers: two physical clusters with one real node each (kubelet, containerd, runc), and the real
//! binary as the syncer of each. What only a kubelet can show stands here; everything else is cheaper in `e2e`.
//! Runs within `testbed/in-network`: `make test-kubelet`. A test has its own virtual namespace, and leaves the others' alone.
//!
//! | room | what it proves |
//! |---|---|
//! | [`files`] | ConfigMaps, Secrets and tokens as a container sees them |
//! | [`containers`] | init containers, sidecars, probes, exit codes, ends; how they look in the virtual cluster |
//! | [`changes`] | what changes while a container runs: resources, debug containers, images, the kubelet itself |
//! | [`volumes`] | data of a PersistentVolume, from one container to the next |
//! | [`traces`] | what a node leaves on the machine |

mod changes;
mod containers;
mod files;
mod traces;
mod volumes;

mod ground;
mod tenant;
