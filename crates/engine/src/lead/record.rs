//! The Lease as client-go's leader election reads and writes it: holder, duration, times, transitions.
//! Must not judge by the times in it: they are the clock of another machine.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tapestry_cluster::feed::Row;
use tapestry_cluster::{Rv, Uid};

use super::election::Seat;
use crate::Now;

/// What we keep of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its UID.
    pub uid: Uid,
    /// Its version.
    pub rv: Rv,
    deleting: bool,
    /// What the holder wrote; any change in it shows that the holder lives.
    pub spec: Spec,
}

/// What a holder writes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    holder_identity: Option<Box<str>>,
    lease_duration_seconds: Option<u32>,
    lease_transitions: Option<u32>,
    acquire_time: Option<Box<str>>,
    renew_time: Option<Box<str>>,
}

impl Record {
    /// Reads a Lease.
    pub fn decode(json: &Bytes) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Lease {
            metadata: Metadata,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            uid: Uid,
            resource_version: Rv,
            #[serde(default)]
            deletion_timestamp: Option<Box<str>>,
        }
        let Lease { metadata, spec } = serde_json::from_slice(json)?;
        let Metadata { uid, resource_version: rv, deletion_timestamp } = metadata;
        Ok(Self { uid, rv, deleting: deletion_timestamp.is_some(), spec })
    }

    /// Its holder; empty without one.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or_default()
    }

    /// How long it is valid after we last saw it change.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        Duration::from_secs(self.spec.lease_duration_seconds.unwrap_or_default().into())
    }
}

impl Row for Record {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

/// A new Lease that we hold.
pub(super) fn render_first(seat: &Seat, now: Now) -> Value {
    let mut spec = render_renewal(seat, now);
    spec["acquireTime"] = spec["renewTime"].clone();
    spec["leaseTransitions"] = json!(0);
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
        "metadata": {"name": seat.name.as_str(), "namespace": seat.namespace.as_str()},
    })
}

/// The spec of a renewal; fields that it does not name stay.
pub(super) fn render_renewal(seat: &Seat, now: Now) -> Value {
    json!({
        "holderIdentity": &*seat.identity,
        "leaseDurationSeconds": seat.timings.lease.as_secs(),
        "renewTime": micro_time(now),
    })
}

/// The spec with which we take it from another holder.
pub(super) fn render_taking(seat: &Seat, from: &Record, now: Now) -> Value {
    let mut spec = render_renewal(seat, now);
    spec["acquireTime"] = spec["renewTime"].clone();
    // An int32 there, and it must not become negative.
    let transitions = from.spec.lease_transitions.unwrap_or_default().saturating_add(1).min(i32::MAX.unsigned_abs());
    spec["leaseTransitions"] = json!(transitions);
    spec
}

/// The spec with which we give it back: without a holder, and valid for a second, for candidates that look only at the time.
pub(super) fn render_release(now: Now) -> Value {
    let time = micro_time(now);
    json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": time, "acquireTime": time})
}

fn micro_time(now: Now) -> String {
    format!("{:.6}", now.wall)
}
