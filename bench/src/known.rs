//! What a syncer knows, without a cluster: its model, fed with facts as watches bring them.
//! Must not reach into the model: what the model makes of the facts is what is measured.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Name, Refusal, Side, Uid, Verb};
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_engine::{Dirty, Model as _, Now, Plan};
use tapestry_syncer::bindings::BindingRow;
use tapestry_syncer::nodes::row::{PNode, VNode};
use tapestry_syncer::origin::{Home, Origin};
use tapestry_syncer::pair::{Fact, Key, Pair, Why};
use tapestry_syncer::policies::PolicyRow;
use tapestry_testbed::builders::{binding, policy};

use crate::stage::{BINDING, MOUNT};

/// Every list that is folded in is the first.
pub(crate) const EPOCH: Epoch = Epoch(1);
const VIRTUAL: &str = "00000000-0000-4000-8000-000000000001";
const PHYSICAL: &str = "00000000-0000-4000-8000-000000000002";
const BINDING_UID: &str = "00000000-0000-4000-8000-000000000003";

/// A syncer of the bench's binding, with the bench's policy, connected to both clusters.
pub(crate) struct Known {
    pub(crate) pair: Pair,
    /// Who it is.
    pub(crate) origin: Origin,
    /// Where its objects are.
    pub(crate) home: Home,
    now: Now,
}

impl Known {
    /// Binding and policy are known, nodes and pods are not listed yet.
    pub(crate) fn new() -> Result<Self> {
        let (origin, home) = (Origin::new(VIRTUAL, BINDING_UID, BINDING), Home::new(BINDING, MOUNT)?);
        let mut count = 0_u64;
        let entropy = Box::new(move || {
            count += 1;
            Some(count.to_be_bytes())
        });
        let pair = Pair::new(origin.clone(), home.clone(), BINDING_UID, entropy);
        let mut known = Self { pair, origin, home, now: SystemClock::start().now() };
        let binding = binding(BINDING)
            .cluster_id(BINDING)
            .secret(keys::NAMESPACE, BINDING)
            .mount_namespace(MOUNT)
            .with("/metadata/finalizers", json!([keys::FINALIZER_SYNCER]))
            .with("/status", json!({ "virtualClusterUID": VIRTUAL, "physicalClusterUID": PHYSICAL }))
            .build();
        let binding = BindingRow::decode(&stamp(binding, BINDING_UID))?.context("not a binding")?;
        let policy = policy(BINDING).cluster(BINDING).limit_percent("cpu", 100).limit_percent("memory", 100).build();
        let policy = PolicyRow::decode(&stamp(policy, BINDING))?.context("not a policy")?;
        known.see(Fact::Binding(Change::Put(binding, EPOCH)));
        known.see(Fact::Policy(Side::Virtual, Change::Put(policy, EPOCH)));
        for side in [Side::Virtual, Side::Physical] {
            known.see(Fact::Policy(side, Change::Listed(EPOCH)));
        }
        for (side, identity) in [(Side::Virtual, VIRTUAL), (Side::Physical, PHYSICAL)] {
            known.see(Fact::Connection(side, Connection::Up(Uid::new(identity))));
        }
        Ok(known)
    }

    /// Folds a fact in.
    pub(crate) fn see(&mut self, seen: Fact) {
        self.pair.observe(seen, self.now, &mut Dirty::default());
    }

    /// All nodes and pods have been seen.
    pub(crate) fn complete(&mut self) {
        self.see(Fact::VNode(Change::Listed(EPOCH)));
        self.see(Fact::VPod(Change::Listed(EPOCH)));
        self.see(Fact::PNode(Change::Listed(EPOCH)));
        self.see(Fact::PPod(Change::Listed(EPOCH)));
    }

    /// What it would do about a physical node.
    pub(crate) fn plan_node(&self, node: &Name) -> Plan<Why> {
        self.pair.plan(&Key::Node(node.clone()), self.now)
    }

    /// The virtual node that it would create.
    fn render_vnode(&mut self, node: &Name) -> Result<Value> {
        let plan = match self.plan_node(node) {
            // Before it creates one it asks whether there is one; there is none.
            Plan::Do(call, why) if call.verb == Verb::Get => {
                let key = Key::Node(node.clone());
                self.pair.settle(&key, why, &call, Err(Refusal::Gone), self.now, &mut Dirty::default());
                self.plan_node(node)
            }
            plan => plan,
        };
        match plan {
            Plan::Do(call, _) => match call.verb {
                Verb::Create(body) => Ok(body),
                _ => bail!("not a creation: {call}"),
            },
            other => bail!("{node} would not be lent: {other:?}"),
        }
    }
}

/// The virtual nodes that a syncer creates for these physical ones, as it would send them.
pub(crate) fn render_vnodes(pnodes: Vec<Value>) -> Result<Vec<Value>> {
    let mut known = Known::new()?;
    let mut names = Vec::with_capacity(pnodes.len());
    for pnode in pnodes {
        names.push(Name::parse(pnode["metadata"]["name"].as_str().unwrap_or_default())?);
        let row = PNode::decode(&pnode.to_string().into())?.context("not a node")?;
        known.see(Fact::PNode(Change::Put(row, EPOCH)));
    }
    known.complete();
    names.iter().map(|name| known.render_vnode(name)).collect()
}

/// A virtual node as its watch brings it.
pub(crate) fn decode_vnode(body: Value, uid: &str) -> Result<VNode> {
    VNode::decode(&stamp(body, uid))?.context("not a virtual node")
}

/// As an API server would have taken it.
pub(crate) fn stamp(mut object: Value, uid: &str) -> Bytes {
    object["metadata"]["uid"] = uid.into();
    object["metadata"]["resourceVersion"] = "1".into();
    object["metadata"]["generation"] = 1.into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    object.to_string().into()
}
