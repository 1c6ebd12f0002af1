//! The arithmetic alone (`domain`): what a pod asks for, what a node's pods add up to, what is lent of it.
//! Must not touch a table or a row.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use tapestry_domain::capacity::{Limit, leased};
use tapestry_domain::quantity::Percent;
use tapestry_domain::request::PodShape;
use tapestry_domain::resources::{ResourceName, Resources};

use super::objects::ppod;
use crate::figures::fold::Arithmetic;

/// Different pods; each represents many.
const SHAPES: u32 = 100;

/// Adds up a cluster of this size.
pub(super) fn measure(nodes: u32, pods_per_node: u32) -> Result<Arithmetic> {
    let texts: Vec<_> = (0..SHAPES).map(|index| ppod(index, 1)).collect();
    let shapes: Vec<PodShape<'_>> =
        texts.iter().map(|text| serde_json::from_slice(text)).collect::<Result<_, serde_json::Error>>()?;
    let base = Resources::parse([("cpu", "32"), ("memory", "256Gi"), ("pods", "110")])?;
    let share =
        |resource| Ok::<_, anyhow::Error>(Limit { resource, quantity: None, percent: Some(Percent::parse(80)?) });
    let limits = [share(ResourceName::Cpu)?, share(ResourceName::Memory)?];
    let (mut asking, mut adding, mut lending) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut of_pods = shapes.iter().cycle();
    for _ in 0..nodes {
        let begin = Instant::now();
        let requests: Vec<Resources> =
            of_pods.by_ref().take(pods_per_node as usize).map(|shape| black_box(shape).request()).collect();
        asking += begin.elapsed();
        let begin = Instant::now();
        let mut used = Resources::new();
        for request in &requests {
            used.add(black_box(request));
        }
        adding += begin.elapsed();
        let begin = Instant::now();
        black_box(leased(black_box(&base), &used, &limits));
        lending += begin.elapsed();
    }
    let pods = nodes * pods_per_node;
    let nanos = |took: Duration, count: u32| took.as_secs_f64() * 1e9 / f64::from(count.max(1));
    Ok(Arithmetic {
        nodes,
        pods,
        request_ns: nanos(asking, pods),
        add_ns: nanos(adding, pods),
        leased_ns: nanos(lending, nodes),
        whole_ms: (asking + adding + lending).as_secs_f64() * 1000.0,
    })
}
