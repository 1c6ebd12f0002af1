//! `tapestry explain node`: every figure of a node from allocatable to leased, with the policy it comes from.

use futures::StreamExt as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_syncer::explain::{Figure, LimitStory, NodeStory};
use tapestry_syncer::start::Syncer;

use crate::access::{Access, ask_each, block_on};
use crate::failure::Failure;
use crate::output::{Output, plain, print, table};

/// Explain the state of a node.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    access: Access,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text", global = true)]
    output: Output,
}

#[derive(clap::Subcommand)]
enum What {
    /// Show what a node lends, and which policy sets each figure
    #[command(after_help = "Examples:
  tapestry explain node vnode-east-worker-1
  tapestry explain node worker-1 --binding east -o json")]
    Node {
        /// Name of the virtual or the physical node
        name: String,
        /// Only this binding [default: all, until one has the node]
        #[arg(long, value_name = "NAME")]
        binding: Option<String>,
    },
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        block_on(async {
            let What::Node { name, binding } = &self.what;
            match self.find(name, binding.as_deref()).await {
                Ok(story) => print(self.output, &story, |story| render(story, &TimeZone::system())),
                Err(failure) => {
                    // As text it goes to standard error.
                    print(self.output, &Untold { node: name, failure: failure.line() }, |_| String::new())?;
                    Err(failure)
                }
            }
        })
    }

    /// The name of a virtual node is unique: the first binding that has it answers. Several bindings may have a physical
    /// node of one name.
    async fn find(&self, name: &str, binding: Option<&str>) -> Result<NodeStory, Failure> {
        let now = SystemClock::start().now().wall;
        let server = self.access.server().await?;
        let names = server.names(binding).await?;
        let (mut stories, mut failures) = (Vec::new(), Vec::new());
        let mut looks = ask_each(&server, names, Syncer::look);
        while let Some((binding, looked)) = looks.next().await {
            match looked.map(|pair| pair.explain_node(name, now)) {
                Ok(Some(story)) if story.virtual_node.as_deref() == Some(name) => return Ok(story),
                Ok(Some(story)) => stories.push(story),
                Ok(None) => {}
                Err(failure) => failures.push((binding, failure)),
            }
        }
        let bindings: Vec<&str> = stories.iter().map(|story| story.binding.as_str()).collect();
        match (&*bindings, &*failures) {
            ([_], _) => stories.pop().ok_or_else(|| Failure::new("no node found", "", "")),
            ([], []) => Err(Failure::new(
                format!("no node {name}"),
                "no binding has a node of this name",
                "list virtual nodes with `kubectl get nodes`",
            )),
            ([], failures) => {
                for (_, failure) in failures {
                    failure.report();
                }
                let unasked: Vec<&str> = failures.iter().map(|(binding, _)| binding.as_str()).collect();
                Err(unknown(name, &unasked))
            }
            (several, _) => Err(Failure::new(
                format!("several nodes {name}"),
                format!("bindings {} have a physical node of this name", several.join(", ")),
                "choose one with --binding",
            )),
        }
    }
}

/// The output for a node that cannot be explained.
#[derive(Serialize)]
struct Untold<'a> {
    node: &'a str,
    failure: String,
}

/// It may be a node of the bindings that could not be read.
fn unknown(name: &str, unasked: &[&str]) -> Failure {
    let which = unasked.join(", ");
    Failure::new(
        format!("cannot look for node {name} in binding {which}"),
        "the errors above; no other binding has the node",
        "fix the errors above, or name another binding with --binding",
    )
}

fn render(story: &NodeStory, zone: &TimeZone) -> String {
    let until = story.until.map(|until| format!(" until {}", show(until, zone))).unwrap_or_default();
    let lent = if story.lending { "is lent" } else { "is not lent" };
    let appears = story.virtual_node.as_ref().map(|vnode| format!(" as {vnode}")).unwrap_or_default();
    let why = if story.lending {
        String::new()
    } else {
        format!("  {}\n", plain(&format!("{}: {}", story.reason, story.message)))
    };
    let sentence = plain(&format!("Node {} of binding {} {lent}{appears}{until}.", story.node, story.binding));
    let mut text = format!("{sentence}\n{why}");
    let figures: Vec<_> = story.resources.iter().flat_map(rows).collect();
    text += "\n";
    text += &table(["RESOURCE", "ALLOCATABLE", "USED", "IDLE", "LIMIT", "LEASED", "HELD"], &figures);
    let policies: Vec<_> = story
        .policies
        .iter()
        .map(|policy| {
            let whose = if policy.owner { "owner" } else { "tenant" };
            let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
            let until = policy.until.map_or("-".to_owned(), |until| show(until, zone));
            [
                policy.name.clone(),
                whose.to_owned(),
                yes(policy.holds),
                yes(policy.open),
                until,
                policy.priority.to_string(),
            ]
        })
        .collect();
    if !policies.is_empty() {
        text += "\n";
        text += &table(["POLICY", "WHOSE", "APPLIES", "OPEN", "UNTIL", "PRIORITY"], &policies);
    }
    text
}

/// A line for the resource, and one for each further limit.
fn rows(figure: &Figure) -> Vec<[String; 7]> {
    let Figure { resource, allocatable, used, idle, limits, leased, held } = figure;
    let mut limits = limits.iter().map(show_limit);
    let first = limits.next().unwrap_or_else(|| "-".to_owned());
    let line = [resource, allocatable, used, idle, &first, leased, held].map(Clone::clone);
    let more = limits.map(|limit| {
        [const { String::new() }; 4].into_iter().chain([limit]).chain([const { String::new() }; 2]).collect::<Vec<_>>()
    });
    std::iter::once(line).chain(more.filter_map(|cells| cells.try_into().ok())).collect()
}

fn show_limit(limit: &LimitStory) -> String {
    let percent = limit.percent.map(|percent| format!("{percent}%"));
    let said: Vec<_> = limit.quantity.iter().cloned().chain(percent).collect();
    format!("{} by {} = {}", said.join(", "), limit.policy, limit.cap)
}

pub(crate) fn show(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %Z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_binding_that_cannot_be_read_is_not_reported_as_missing() {
        let said = unknown("vnode-x", &["east", "west"]).to_string();
        assert!(said.starts_with("tapestry: cannot look for node vnode-x in binding east, west\n"), "{said}");
        assert!(!said.contains("no node"), "{said}");
        let untold = Untold { node: "vnode-x", failure: "no answer".to_owned() };
        assert_eq!(
            serde_json::to_value(&untold).unwrap(),
            serde_json::json!({"node": "vnode-x", "failure": "no answer"})
        );
    }

    #[test]
    fn a_story_is_a_sentence_and_two_tables() {
        let limits = vec![
            LimitStory { policy: "half".into(), quantity: None, percent: Some(50), cap: "1500m".into() },
            LimitStory { policy: "owner/mine".into(), quantity: Some("1".into()), percent: None, cap: "1".into() },
        ];
        let figure = Figure {
            resource: "cpu".into(),
            allocatable: "4".into(),
            used: "1".into(),
            idle: "3".into(),
            limits,
            leased: "1".into(),
            held: "0".into(),
        };
        let story = NodeStory {
            node: "n1".into(),
            virtual_node: Some("vnode-east-n1".into()),
            binding: "east".into(),
            lending: true,
            reason: "Lending".into(),
            message: String::new(),
            until: Some("2026-01-01T06:00:00Z".parse().unwrap()),
            policies: vec![],
            resources: vec![figure],
        };
        let text = render(&story, &TimeZone::UTC);
        let expected = "\
Node n1 of binding east is lent as vnode-east-n1 until 2026-01-01 06:00 UTC.

RESOURCE  ALLOCATABLE  USED  IDLE  LIMIT                LEASED  HELD
cpu       4            1     3     50% by half = 1500m  1       0
                                   1 by owner/mine = 1
";
        assert_eq!(text, expected);
    }
}
