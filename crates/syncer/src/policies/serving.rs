//! Whether the absence of a policy means that somebody deleted it: asks discovery, and forgets what is certainly gone.

use tapestry_cluster::{Answer, Call, Refusal, Side, kind};
use tapestry_engine::{Dirty, Now, Plan, reasons};

use crate::pair::{Key, Pair};
use crate::serving::Served;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// Whether the kind of policies is served.
        LookForPolicyKind,
    }
}

impl Pair {
    /// Asks discovery when a loss has to be judged.
    pub(crate) fn plan_serving(&self, side: Side, now: Now) -> Plan<Why> {
        match self.working() {
            Some(_) => self.policies.serving(side).plan(side, &kind::POLICY, Why::LookForPolicyKind, now),
            None => Plan::Rest,
        }
    }

    pub(crate) fn settle_serving(
        &mut self,
        side: Side,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        let serving = &mut self.policies.serving[side as usize];
        let before = serving.said();
        let Some(served) = serving.settle(call, done) else { return };
        if before != Some(served) && served != Served::Fully {
            tracing::warn!(
                side = side.as_str(),
                ?served,
                "it is not known which policies there are: nothing new is lent"
            );
        }
        self.forget_deleted_policies(side, now, dirty);
        self.note_drains(now, dirty);
    }
}
