//! Whole syncers on real control planes. One binary, so that all tests share one fleet; two tests at a time.
//! A test has its own clusterID, binding, namespaces and physical nodes, and leaves the others' alone.
//!
//! | room | what it proves |
//! |---|---|
//! | [`nodes`] | how virtual nodes look, when they come and go |
//! | [`lending`], [`windows`], [`reclaim`], [`absence`] | what is lent and when, what stops lending, which pods have to go then |
//! | [`stripped`] | virtual nodes that lose our labels and annotations |
//! | [`csinodes`] | which storage drivers they have |
//! | [`guards`] | limits in the physical cluster: quota, network policy |
//! | [`pods`], [`kubelet`] | down, up, deletion, admission; the second with the test as the kubelet |
//! | [`dependents`], [`volumes`] | what pods name: there before them, gone after them |
//! | [`changes`], [`resize`] | what changes while a pod runs |
//! | [`life`] | controllers' pods on two clusters: gates, evictions, drains, Jobs, failures, copies without a node |
//! | [`dependents`], [`services`] | what is copied beside pods: ConfigMaps, Secrets, tokens; Services, and addresses that come back |
//! | [`podspec`] | the transformation: every field that an API server knows is classified, and it takes the copies |
//! | [`patience`] | a physical node in trouble: which cluster evicts |
//! | [`hostile`] | forged mappings, foreign pods, other bindings: what the syncer must not touch |
//! | [`rights`] | the syncer's accounts and what they may do; every test here runs under the shipped rights |
//! | [`calm`] | identity and idleness, by the API servers' audit logs |
//! | [`out_of_sync`] | watches that are refused, fail or deliver nothing |
//! | [`outage`], [`faults`], [`storms`] | API servers that do not answer, answer wrongly, lose answers; one by one and at random |
//! | [`connections`] | HTTP/2: many requests on one connection, and one that dies |
//! | [`restored`], [`breaker`] | a cluster that was restored from a backup, or emptied, or lost its pods while no syncer ran |
//! | [`restarts`] | API servers and stores that are killed under load |
//! | [`namespaces`] | namespaces that are deleted with all that is in them, on either side |
//! | [`examples`] | the manifests in `examples/` |
//! | [`shared`] | ConfigMaps and Secrets of pods in two physical clusters, renewed tokens, and what `tapestry drift` says of copies |
//! | [`neighbours`] | two bindings in one process: trouble of one does not affect the other |
//! | [`crashes`] | the real binary, killed at every write |
//! | [`kubeconfig`] | the kubeconfig in the Secret: rotated, broken, of another cluster |
//! | [`lives`] | what a syncer survives, and what not |
//! | [`lead`] | several processes of one binding: one leads, the others are ready to |
//! | [`process`] | the real binary: crashes, signals, error messages, endpoints |
//! | [`api`], [`refusals`], [`carry`], [`watch`] | what real API servers answer to our objects, calls and watches |

mod absence;
mod api;
mod both_ways;
mod breaker;
mod calm;
mod carry;
mod changes;
mod connections;
mod crashes;
mod csinodes;
mod dependents;
mod examples;
mod faults;
mod guards;
mod hostile;
mod kubeconfig;
mod kubelet;
mod lead;
mod lending;
mod life;
mod lives;
mod namespaces;
mod neighbours;
mod nodes;
mod out_of_sync;
mod outage;
mod patience;
mod pods;
mod podspec;
mod process;
mod progress;
mod reclaim;
mod refusals;
mod refused;
mod resize;
mod restarts;
mod restored;
mod rights;
mod services;
mod shared;
mod storms;
mod strays;
mod stripped;
mod volumes;
mod watch;
mod windows;

mod fixtures;
mod harness;
mod looks;
mod stub;
mod timing;
mod two;
