//! What an API server has done, by its own metrics: the difference between two readings says what a pod makes it do.
//! Must not be read while something is measured: the metrics of an API server are megabytes.

use anyhow::{Context as _, Result, bail};
use http::Request;
use kube::client::Body;
use serde::Serialize;
use tapestry_cluster::Cluster;
use tapestry_cluster::body::Asked;
use tapestry_cluster::connect::CALL_DEADLINE;

/// Counters since the start of the server, or between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Work {
    /// Answered, without watches.
    pub(crate) requests: u64,
    /// Sent to etcd: an update that lost a race reads and writes again.
    pub(crate) etcd: u64,
    /// Events of pods, counted for each watch that got them.
    pub(crate) events: u64,
    /// Lists of pods: informers read them again when they cannot resume.
    pub(crate) lists: u64,
    /// Watches of pods that began.
    pub(crate) watches: u64,
    /// Watches that the server ended because their reader was too slow.
    pub(crate) terminated: u64,
}

impl Work {
    /// Reads the metrics of a server.
    pub(crate) async fn read(cluster: &Cluster) -> Result<Self> {
        let request = Request::get("/metrics").body(Body::empty())?;
        let (code, _, body) =
            cluster.exchange(request, CALL_DEADLINE, Asked::Page).await.map_err(anyhow::Error::msg)?;
        if code != 200 {
            bail!("HTTP {code} when asking {} for its metrics", cluster.name());
        }
        Ok(Self::parse(std::str::from_utf8(&body).context("metrics are no text")?))
    }

    fn parse(text: &str) -> Self {
        let mut work = Self::default();
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let has = |label: &str| labels.contains(label);
            let pods = has("resource=\"pods\"") && has("group=\"\"");
            let counters: &mut [&mut u64] = match name {
                "apiserver_request_total" if has("verb=\"WATCH\"") && pods => &mut [&mut work.watches],
                "apiserver_request_total" if has("verb=\"WATCH\"") => continue,
                "apiserver_request_total" if has("verb=\"LIST\"") && pods => &mut [&mut work.requests, &mut work.lists],
                "apiserver_request_total" => &mut [&mut work.requests],
                "etcd_request_duration_seconds_count" => &mut [&mut work.etcd],
                "apiserver_watch_events_total" if pods || has("kind=\"Pod\"") => &mut [&mut work.events],
                "apiserver_terminated_watchers_total" => &mut [&mut work.terminated],
                _ => continue,
            };
            // Prometheus counts in floats; these are whole numbers, from a million on perhaps as 1.5e+06.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counters are whole and positive"
            )]
            let value = value.parse::<f64>().unwrap_or(0.0) as u64;
            for counter in counters {
                **counter += value;
            }
        }
        work
    }

    /// From the earlier reading to this one. A server that started again begins at 0.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            etcd: self.etcd.saturating_sub(earlier.etcd),
            events: self.events.saturating_sub(earlier.events),
            lists: self.lists.saturating_sub(earlier.lists),
            watches: self.watches.saturating_sub(earlier.watches),
            terminated: self.terminated.saturating_sub(earlier.terminated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_their_labels() {
        let text = r#"
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",group="",resource="pods",verb="POST"} 7
apiserver_request_total{code="200",group="",resource="pods",verb="LIST"} 2
apiserver_request_total{code="0",group="",resource="pods",verb="WATCH"} 3
apiserver_request_total{code="200",group="",resource="nodes",verb="WATCH"} 30
apiserver_request_total{code="200",group="metrics.k8s.io",resource="pods",verb="LIST"} 1
etcd_request_duration_seconds_count{operation="get",type="pods"} 1.5e+06
etcd_request_duration_seconds_sum{operation="get",type="pods"} 9
apiserver_watch_events_total{group="",resource="pods",version="v1"} 40
apiserver_watch_events_total{group="",resource="nodes",version="v1"} 50
apiserver_terminated_watchers_total{group="",resource="pods"} 1
"#;
        let work = Work::parse(text);
        let expected = Work { requests: 10, etcd: 1_500_000, events: 40, lists: 2, watches: 3, terminated: 1 };
        assert_eq!(work, expected);
        assert_eq!(work.since(Work { requests: 4, ..Work::default() }).requests, 6);
    }
}
