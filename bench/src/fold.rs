//! `bench fold`: how long the model takes to count, without a cluster: everything from scratch, and one pod's change.
//! Must not time what is not counting: objects are decoded before, and how long that took is said beside it.

mod arithmetic;
mod objects;
mod rows;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tapestry_cluster::Name;
use tapestry_cluster::feed::Change;
use tapestry_domain::names::vnode_name;
use tapestry_syncer::nodes::row::{PNode, VNode};
use tapestry_syncer::pair::Fact;
use tapestry_syncer::pods::row::{PPod, VPod};

use self::objects::{node_name, pnode, ppod, vpod};
use crate::figures::fold::{Fold, Folded};
use crate::figures::{Figures, Spread};
use crate::known::{EPOCH, Known, decode_vnode, render_vnodes, stamp};
use crate::machine::{Machine, load_average};
use crate::report::Telling;
use crate::stage::BINDING;

/// Cluster sizes in nodes. The last is the largest that the design speaks of.
const SIZES: [u32; 4] = [10, 100, 1000, 5000];
/// Pods of others on each node: 100 000 on 5 000.
const PODS_PER_NODE: u32 = 20;
/// Pods that come and go again, one by one.
const CHANGES: u32 = 5000;
/// How often all is counted; the quickest counts.
const ROUNDS: u32 = 3;

/// Count in memory: clusters of 10 to 5000 nodes, from scratch and pod by pod
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    #[command(flatten)]
    telling: Telling,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        self.telling.check()?;
        let machine = Machine::look(None, load_average())?;
        let fold = measure()?;
        self.telling.tell(&Figures { fold: Some(fold), ..Figures::new(machine, 0) }, None)
    }
}

/// Measures all sizes.
pub(crate) fn measure() -> Result<Fold> {
    let rows = rows::measure()?;
    let mut sizes = Vec::new();
    for nodes in SIZES {
        eprintln!("folding {nodes} nodes with {} pods", nodes * PODS_PER_NODE);
        sizes.push(Facts::decode(nodes)?.fold()?);
    }
    eprintln!("adding up {} pods on {} nodes", 5000 * PODS_PER_NODE, 5000);
    Ok(Fold { rows, sizes, arithmetic: arithmetic::measure(5000, PODS_PER_NODE)? })
}

/// All facts about a cluster of one size, decoded.
struct Facts {
    nodes: u32,
    vnodes: Vec<VNode>,
    vpods: Vec<VPod>,
    pnodes: Vec<PNode>,
    ppods: Vec<PPod>,
    /// Those that come and go, with the nodes they come to.
    visitors: Vec<(Name, PPod)>,
    /// How long each of the pods took.
    decoding: Vec<Duration>,
}

impl Facts {
    fn decode(nodes: u32) -> Result<Self> {
        let Known { origin, home, .. } = Known::new()?;
        let mut decoding = Vec::new();
        let mut decode = |index: u32| -> Result<PPod> {
            let json = ppod(index, nodes);
            let begin = Instant::now();
            let row = PPod::decode(&json, &origin);
            decoding.push(begin.elapsed());
            row?.context("not a pod")
        };
        let pods = nodes * PODS_PER_NODE;
        let ppods = (0..pods).map(&mut decode).collect::<Result<_>>()?;
        // A stride that is prime to every size: neighbours in time are no neighbours in memory.
        let visitor = |index: u32| Ok((node_name(index * 7919, nodes)?, decode(pods + index * 7919)?));
        let visitors = (0..CHANGES).map(visitor).collect::<Result<_>>()?;
        let bodies = render_vnodes((0..nodes).map(|index| pnode(index, nodes)).collect())?;
        let vnodes = bodies.into_iter().enumerate().map(|(index, body)| decode_vnode(body, &format!("vnode-{index}")));
        let one_each = |index: u32| {
            let json = vpod(index, &vnode_name(BINDING, node_name(index, nodes)?.as_str()));
            VPod::decode(&json, &home)?.context("not a pod of ours")
        };
        let pnode =
            |index: u32| PNode::decode(&stamp(pnode(index, nodes), &format!("pnode-{index}")))?.context("not a node");
        Ok(Self {
            nodes,
            vnodes: vnodes.collect::<Result<_>>()?,
            vpods: (0..nodes).map(one_each).collect::<Result<_>>()?,
            pnodes: (0..nodes).map(pnode).collect::<Result<_>>()?,
            ppods,
            visitors,
            decoding,
        })
    }

    /// All of it, as a start folds it in.
    fn count(&self) -> Result<(Known, Duration)> {
        let facts: Vec<Fact> = (self.vnodes.iter().cloned().map(|row| Fact::VNode(Change::Put(row, EPOCH))))
            .chain(self.vpods.iter().cloned().map(|row| Fact::VPod(Change::Put(row, EPOCH))))
            .chain(self.pnodes.iter().cloned().map(|row| Fact::PNode(Change::Put(row, EPOCH))))
            .chain(self.ppods.iter().cloned().map(|row| Fact::PPod(Change::Put(row, EPOCH))))
            .collect();
        let mut known = Known::new()?;
        let begin = Instant::now();
        for fact in facts {
            known.see(fact);
        }
        known.complete();
        Ok((known, begin.elapsed()))
    }

    fn fold(self) -> Result<Folded> {
        let mut scratch = Duration::MAX;
        for _ in 1..ROUNDS {
            scratch = scratch.min(self.count()?.1);
        }
        let (mut known, took) = self.count()?;
        let Self { nodes, visitors, decoding, .. } = self;
        let (mut changes, mut plans) = (Vec::new(), Vec::new());
        let mut change = |known: &mut Known, node: &Name, change: Change<PPod>| {
            let begin = Instant::now();
            known.see(Fact::PPod(change));
            changes.push(begin.elapsed());
            let begin = Instant::now();
            black_box(known.plan_node(node));
            plans.push(begin.elapsed());
        };
        for (node, row) in visitors {
            change(&mut known, &node, Change::Put(row.clone(), EPOCH));
            change(&mut known, &node, Change::Gone { row, proven: true });
        }
        known.pair.check_sums().map_err(anyhow::Error::msg)?;
        let in_micros = |spread: Spread| Spread { p50: spread.p50 * 1000.0, p99: spread.p99 * 1000.0 };
        Ok(Folded {
            nodes,
            pods: nodes * PODS_PER_NODE,
            decode_us: in_micros(Spread::of(decoding)),
            scratch_ms: scratch.min(took).as_secs_f64() * 1000.0,
            change_us: in_micros(Spread::of(changes)),
            plan_us: in_micros(Spread::of(plans)),
        })
    }
}
