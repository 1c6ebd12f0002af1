//! The rights that a call needs, as the API server's authorizer sees its requests. Grants nothing.

use crate::{Call, Kind, Name, Side, Target, Verb};

/// One right that a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need<'a> {
    /// Of which cluster.
    pub side: Side,
    /// `get`, `list`, `create`, `patch`, `delete`.
    pub verb: &'static str,
    /// Of which resource.
    pub kind: &'static Kind,
    /// Which subresource; empty for the object itself.
    pub part: &'static str,
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<&'a Name>,
    /// `None` where the authorizer does not see it: objects that are created, and lists.
    pub name: Option<&'a Name>,
}

impl<'a> Need<'a> {
    fn of(target: &'a Target, verb: &'static str, part: &'static str) -> Self {
        let Target { side, kind, namespace, name, .. } = target;
        Self { side: *side, verb, kind, part, namespace: namespace.as_ref(), name: Some(name) }
    }

    fn nameless(self) -> Self {
        Self { name: None, ..self }
    }
}

impl Call {
    /// All rights that it needs, in the order of its requests; none for discovery, which every authenticated user may read.
    #[must_use]
    pub fn needs(&self) -> Vec<Need<'_>> {
        let target = &self.target;
        let create = || Need::of(target, "create", "").nameless();
        let patch = || Need::of(target, "patch", "");
        match (&self.verb, &target.uid) {
            (Verb::Discover { .. }, _) => Vec::new(),
            (Verb::Create(_) | Verb::Version, _) => vec![Need::of(target, self.verb.as_str(), "").nameless()],
            (Verb::Carry { from, .. }, None) => vec![Need::of(from, "get", ""), create()],
            (Verb::Carry { from, .. }, Some(_)) => {
                vec![Need::of(from, "get", ""), Need::of(target, "get", ""), patch()]
            }
            (Verb::Token { account, .. }, None) => vec![Need::of(account, "create", "token"), create()],
            (Verb::Token { account, .. }, Some(_)) => vec![Need::of(account, "create", "token"), patch()],
            (
                Verb::Get
                | Verb::Peek
                | Verb::Merge(..)
                | Verb::Strategic(..)
                | Verb::Apply(..)
                | Verb::Delete { .. }
                | Verb::Evict { .. },
                _,
            ) => vec![Need::of(target, self.verb.as_str(), self.part())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::carry::tests::carry;
    use crate::call::token::tests::token;

    #[test]
    fn law_10_a_call_of_several_requests_lists_the_rights_of_them_all() {
        let needs = |call: &Call| {
            let shown = |need: Need<'_>| {
                let part = if need.part.is_empty() { "" } else { "/" };
                let name = need.name.map_or("*", Name::as_str);
                format!("{} {} {}{part}{} {name}", need.side.as_str(), need.verb, need.kind.plural, need.part)
            };
            call.needs().into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(needs(&carry(None)), ["virtual get secrets db", "physical create secrets *"]);
        assert_eq!(
            needs(&carry(Some("u"))),
            ["virtual get secrets db", "physical get secrets db-copy", "physical patch secrets db-copy"]
        );
        assert_eq!(needs(&token(None)), ["virtual create serviceaccounts/token robot", "physical create secrets *"]);
        assert_eq!(
            needs(&token(Some("u"))),
            ["virtual create serviceaccounts/token robot", "physical patch secrets web-token"]
        );
    }
}
