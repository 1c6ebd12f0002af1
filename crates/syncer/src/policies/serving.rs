//! Whether the absence of a policy means that a user deleted it: asks discovery, and forgets what is certainly gone.

use tapestry_cluster::{Answer, Call, Refusal, Side, kind};
use tapestry_engine::{Dirty, Now, Plan, reasons};

use super::Policies;
use crate::pair::Key;
use crate::serving::Served;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether the kind of policies is served.
        LookForPolicyKind,
    }
}

impl Policies {
    /// Asks discovery when a loss has to be judged.
    pub(crate) fn plan_serving(&self, side: Side, now: Now) -> Plan<Why> {
        self.serving(side).plan(side, &kind::POLICY, Why::LookForPolicyKind, now)
    }

    /// Folds in what discovery answered; says whether what is lent may be something else now, on every node.
    #[must_use]
    pub(crate) fn settle_serving(
        &mut self,
        side: Side,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) -> bool {
        let serving = &mut self.serving[side as usize];
        let before = serving.said();
        let served = match why {
            Why::LookForPolicyKind => serving.settle(call, done),
        };
        let Some(served) = served else { return false };
        if before != Some(served) && served != Served::Fully {
            tracing::warn!(side = side.as_str(), ?served, "cannot tell which policies exist: lending nothing new");
        }
        self.forget_deleted(side);
        dirty.mark(Key::Binding);
        self.renew_hours(now);
        true
    }
}
