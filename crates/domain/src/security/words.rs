//! How violations are worded: as Kubernetes words them, so that they are found in its documentation.
//! It must not let a pod produce a long text: items are cut and lists end early.

use super::shape::{Context, SecurityShape};
use crate::excerpt::excerpt;

/// Longer lists end in `…`: a condition must stay readable, and its pod decides how long a list is.
const LISTED: usize = 8;

/// The word for this many.
pub(super) fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `"a", "b"`.
pub(super) fn quoted<'t>(items: impl IntoIterator<Item = &'t str>) -> String {
    joined(items.into_iter().map(quote))
}

/// `"a"`.
pub(super) fn quote(item: &str) -> String {
    format!("\"{}\"", excerpt(item))
}

/// `a, b`.
pub(super) fn listed<'t>(items: impl IntoIterator<Item = &'t str>) -> String {
    joined(items.into_iter().map(excerpt))
}

/// Items that are already worded and cut.
pub(super) fn joined(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::new();
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        if position == LISTED {
            text.push('…');
            break;
        }
        text.push_str(item.as_ref());
    }
    text
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names.iter().copied()))
}

/// The pod and containers that set something forbidden.
pub(super) struct Setters<'s> {
    pod: bool,
    containers: Vec<&'s str>,
}

impl<'s> Setters<'s> {
    /// Asks the security context of the pod and of each container whether it is a bad one.
    pub(super) fn of(spec: &'s SecurityShape<'s>, mut bad: impl FnMut(&'s Context<'s>) -> bool) -> Self {
        let pod = bad(&spec.security_context);
        let mut containers = Vec::new();
        for container in spec.all_containers() {
            if bad(&container.security_context) {
                containers.push(&*container.name);
            }
        }
        Self { pod, containers }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.pod && self.containers.is_empty()
    }

    /// `pod` and `containers "a", "b"`, as far as there are such.
    pub(super) fn parts(&self) -> Vec<String> {
        let pod = self.pod.then(|| "pod".to_owned());
        let containers = (!self.containers.is_empty()).then(|| containers(&self.containers));
        pod.into_iter().chain(containers).collect()
    }

    /// `pod and containers "a", "b"`.
    pub(super) fn words(&self) -> String {
        self.parts().join(" and ")
    }
}
