//! Addresses of load balancers, from copies to the status of their Services. Several bindings may carry the same Service: each
//! records in an annotation which entries are its own, and leaves the others alone.

use serde_json::{Value, json};
use tapestry_cluster::{Answer, Refusal, Sub, Verb};
use tapestry_domain::services::ingress;
use tapestry_engine::{Dirty, Plan, Reason as _};

use super::plan::{LOOK_AGAIN, Why};
use super::reason::{Notice, ServiceReason};
use super::row::{Of, VService};
use super::{Case, Id, Services, Setting};
use crate::pair::Key;

/// Writes the addresses of the copy, or takes ours back where there is none to have some. Under the version we looked at: the list is
/// replaced as a whole (law 2). A status patch carries annotations too, so that list and record never differ.
pub(super) fn plan(case: &Case, source: &VService, copy: Option<&Of>, setting: &Setting<'_>) -> Plan<Why> {
    let copy = copy.filter(|of| source.balanced && !of.deleting);
    let wanted = copy.and_then(|of| of.ingress.as_deref());
    let recorded = source.recorded.as_deref();
    if wanted.is_none() && recorded.is_none() {
        return Plan::Rest;
    }
    let [there, before, ours] = [source.ingress.as_deref(), recorded, wanted].map(entries);
    let known = recorded == wanted;
    if known && ingress::holds(&there, &before, &ours) {
        return Plan::Rest;
    }
    let refused = case.addresses_refused.map(|at| at + LOOK_AGAIN);
    let held = refused.filter(|until| *until > setting.now.steady);
    if let Some(until) = held.or_else(|| case.restored.until(setting.now.steady).filter(|_| known)) {
        return Plan::Wait(until);
    }
    let merged = ingress::merge(&there, &before, &ours);
    let merged = if merged.is_empty() { Value::Null } else { Value::Array(merged) };
    let body = json!({
        "metadata": {"annotations": {setting.record: wanted}},
        "status": {"loadBalancer": {"ingress": merged}},
    });
    let why = if known { Why::RestoreAddresses } else { Why::WriteAddresses };
    why.call(source.id.target().uid(&source.uid).rv(source.rv), Verb::Merge(Sub::Status, body))
}

/// What is not a list of entries is none.
fn entries(text: Option<&str>) -> Vec<Value> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

impl Services {
    /// Folds in how a write of addresses ended.
    pub(super) fn settle_addresses(
        &mut self,
        id: &Id,
        restored: bool,
        done: Result<Answer, Refusal>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) -> Option<Notice> {
        let case = self.cases.get_mut(id)?;
        match done {
            Ok(answer) => {
                case.addresses_refused = None;
                let contested = restored && case.restored.count(setting.now.steady);
                if let Ok(Some(row)) = VService::decode(&answer.object, setting.origin, setting.record) {
                    self.put_source(row, None, dirty);
                }
                contested.then(|| ServiceReason::AddressesContested.notice(""))
            }
            Err(Refusal::Invalid(_) | Refusal::Denied(_)) => {
                case.addresses_refused = Some(setting.now.steady);
                None
            }
            // Another version, or no answer: the watch brings the truth.
            Err(_) => None,
        }
    }
}
