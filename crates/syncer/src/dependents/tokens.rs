//! The Secret with the tokens of one virtual pod: issued by the virtual cluster, bound to the virtual pod, renewed in time.
//! Never a token of the physical cluster.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tapestry_cluster::call::{PodRef, TokenAsk};
use tapestry_cluster::{Answer, Call, Name, Refusal, Side, Target, Uid, Verb, kind};
use tapestry_domain::dependents::DependentKind;
use tapestry_domain::names;
use tapestry_engine::{Dirty, Plan, Reason as _, reasons};

use super::needs::Needs;

use super::row::{DependentCopy, Of};
use super::{Dependents, Look, Readiness, Setting, Who};
use crate::contest::Contest;
use crate::pair::Key;
use crate::terms::steady_at;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// A pod needs tokens before it starts.
        CreateToken,
        /// Most of their life is over.
        RefreshToken,
        /// The name of the Secret is taken: by what?
        LookForToken,
        /// Another client made the Secret immutable: it is deleted and created again.
        ReplaceToken,
        /// The pod is gone.
        RemoveToken,
    }
}

/// Tokens of one pod are not issued more often than this.
const ISSUE_AGAIN: Duration = Duration::from_mins(1);

/// What is known of the tokens of one pod.
#[derive(Default)]
pub(super) struct TokenCase {
    /// Who needs them; `None` when the pod is gone, or needs none.
    wanted: Option<Wanted>,
    /// The Secret, and its name.
    copy: Option<(Uid, Name)>,
    pub(super) look: Look,
    /// When the last ones were issued, and a fingerprint of what the Secret held then.
    issued: Option<Duration>,
    wrote: Option<u64>,
    /// When the Secret was found deleted by another client, and created again.
    reverts: Contest,
    /// Another client deleted the Secret, and it was not created again.
    lost: bool,
    /// Kubernetes lets no client change the Secret.
    fixed: bool,
    /// Why they cannot be issued.
    failure: Option<Box<str>>,
}

struct Wanted {
    needs: Arc<Needs>,
    /// Whether with the token that the virtual cluster injects.
    api_access: bool,
    namespace: Name,
    pod: Name,
}

impl TokenCase {
    pub(super) fn claim(&mut self, copy: Uid, name: Name) {
        (self.copy, self.look) = (Some((copy, name)), Look::Unknown);
    }

    pub(super) fn lose(&mut self, copy: &Uid) {
        if self.copy.take_if(|(uid, _)| uid == copy).is_some() {
            (self.wrote, self.fixed) = (None, false);
        }
    }

    /// The Secret is gone, and we did not ask for it.
    pub(super) fn lose_to_others(&mut self, copy: &Uid) {
        let ours = self.copy.as_ref().is_some_and(|(uid, _)| uid == copy);
        // One that we replace is deleted by ourselves.
        self.lost |= ours && self.wanted.is_some() && !self.fixed;
        self.lose(copy);
    }

    /// Another process led: what the Secret holds now may be its work.
    pub(super) fn doubt(&mut self) {
        (self.wrote, self.lost) = (None, false);
    }

    /// The pod that needs them.
    pub(super) fn pod_name(&self) -> Option<&str> {
        self.wanted.as_ref().map(|wanted| wanted.pod.as_str())
    }

    /// No other object has the Secret's name any more.
    pub(super) fn see_name_free(&mut self) {
        (self.look, self.failure) = (Look::Unknown, None);
    }

    /// Whether the Secret holds every token that the pod needs, as far as we know as they were issued.
    fn holds(&self, wanted: &Wanted, copy: &DependentCopy) -> bool {
        let Of::Pod { held, print, .. } = &copy.of else { return false };
        let all = wanted.asks().iter().all(|ask| held.iter().any(|token| token.key == ask.key));
        all && self.wrote.is_none_or(|wrote| wrote == *print)
    }

    /// When they are renewed; `None`: at once, because another client changed, emptied or unmarked the Secret. A client can also
    /// change the annotation while no process watches, so a token is never kept longer than it says itself.
    fn renew_at(&self, wanted: &Wanted, copy: &DependentCopy) -> Option<Timestamp> {
        let Of::Pod { refresh, held, .. } = &copy.of else { return None };
        let refresh = (*refresh).filter(|_| copy.marked && self.holds(wanted, copy))?;
        let asked = held.iter().filter(|token| wanted.asks().iter().any(|ask| ask.key == token.key));
        Some(asked.filter_map(|token| token.renew_by).fold(refresh, Timestamp::min))
    }
}

impl Wanted {
    fn asks(&self) -> &[TokenAsk] {
        self.needs.tokens(self.api_access)
    }
}

impl Dependents {
    /// A pod needs tokens, or none any more.
    pub(super) fn want_tokens(
        &mut self,
        vuid: &Uid,
        pod: Option<(&Name, &Name)>,
        needs: Option<&Arc<Needs>>,
        api_access: bool,
        dirty: &mut Dirty<Key>,
    ) {
        let wants = needs.filter(|needs| needs.wants_tokens(api_access));
        if wants.is_none() && !self.tokens.contains_key(vuid) {
            return;
        }
        let case = self.tokens.entry(vuid.clone()).or_default();
        case.wanted = match (wants, pod) {
            (Some(needs), Some((namespace, name))) => {
                Some(Wanted { needs: Arc::clone(needs), api_access, namespace: namespace.clone(), pod: name.clone() })
            }
            // The watch does not show the pod, and its copy may run: it keeps its tokens.
            (Some(_), None) => case.wanted.take(),
            (None, _) => None,
        };
        dirty.mark(Key::Token(vuid.clone()));
        self.drop_token(vuid);
    }

    pub(super) fn drop_token(&mut self, vuid: &Uid) {
        if self.tokens.get(vuid).is_some_and(|case| case.wanted.is_none() && case.copy.is_none()) {
            self.tokens.remove(vuid);
        }
    }

    fn token_copy(&self, case: &TokenCase) -> Option<&DependentCopy> {
        self.copies[DependentKind::Secret as usize].get(&case.copy.as_ref()?.0)
    }

    /// Whether the pod's tokens are there.
    pub(super) fn token_readiness(&self, vuid: &Uid) -> Readiness<'_> {
        let Some(case) = self.tokens.get(vuid) else { return Readiness::NotYet };
        match (self.token_copy(case), &case.failure) {
            (Some(copy), _) if copy.deleting => Readiness::Terminating(DependentKind::Secret, &copy.name),
            (Some(copy), _) if case.wanted.as_ref().is_some_and(|wanted| case.holds(wanted, copy)) => Readiness::Ready,
            (_, Some(failure)) => Readiness::NoToken(failure),
            (_, None) => Readiness::NotYet,
        }
    }

    /// The plan for the tokens of one pod.
    pub(crate) fn plan_token(&self, vuid: &Uid, setting: &Setting<'_>) -> Plan<Why> {
        let listed = self.copies[DependentKind::Secret as usize].complete();
        let Some(case) = self.tokens.get(vuid).filter(|_| listed) else { return Plan::Rest };
        match (&case.wanted, self.token_copy(case)) {
            (_, Some(copy)) if copy.deleting => Plan::Rest,
            (None, Some(copy)) if setting.may_collect => {
                let target = secret(setting, copy.name.clone()).uid(&copy.uid).rv(copy.rv);
                Why::RemoveToken.call(target, Verb::Delete { grace: None })
            }
            (None, _) => Plan::Rest,
            (Some(wanted), None) => {
                let name = names::token_secret_name(&setting.origin.label, vuid.as_str(), wanted.pod.as_str());
                let Ok(name) = Name::parse(&name) else { return Plan::Rest };
                if let Some(until) = case.reverts.until(setting.now.steady).filter(|_| case.lost) {
                    return Plan::Wait(until);
                }
                case.look.plan(secret(setting, name), setting.now.steady, Why::LookForToken, |target| {
                    issue(wanted, vuid, setting).map_or(Plan::Rest, |verb| Why::CreateToken.call(target, verb))
                })
            }
            (Some(_), Some(copy)) if case.fixed => {
                let target = secret(setting, copy.name.clone()).uid(&copy.uid).rv(copy.rv);
                Why::ReplaceToken.call(target, Verb::Delete { grace: None })
            }
            (Some(wanted), Some(copy)) => {
                let renew_at = case.renew_at(wanted, copy);
                if let Some(renew_at) = renew_at.filter(|renew_at| *renew_at > setting.now.wall) {
                    return Plan::Wait(steady_at(renew_at, setting.now));
                }
                // Where clocks differ, the time may have come before the token did.
                let again = case.issued.map(|at| at + ISSUE_AGAIN);
                if let Some(again) = again.filter(|again| *again > setting.now.steady) {
                    return Plan::Wait(again);
                }
                let target = secret(setting, copy.name.clone()).uid(&copy.uid);
                issue(wanted, vuid, setting).map_or(Plan::Rest, |verb| Why::RefreshToken.call(target, verb))
            }
        }
    }

    /// Folds in how a call ended; says why the tokens of a pod that has some are not renewed, when that is news.
    #[must_use]
    pub(crate) fn settle_token(
        &mut self,
        vuid: &Uid,
        why: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        setting: &Setting<'_>,
        dirty: &mut Dirty<Key>,
    ) -> Option<Box<str>> {
        let case = self.tokens.get_mut(vuid)?;
        let mut news = None;
        match (why, done) {
            (Why::CreateToken | Why::RefreshToken | Why::LookForToken, Ok(answer)) => {
                if why == Why::CreateToken && std::mem::take(&mut case.lost) {
                    let _ = case.reverts.count(setting.now.steady);
                }
                let contested = case.reverts.until(setting.now.steady).is_some();
                let before = std::mem::replace(&mut case.failure, contested.then(|| contested_text(&call.target.name)));
                if contested && why == Why::CreateToken {
                    news.clone_from(&case.failure);
                }
                let row = DependentCopy::decode(&answer.object, DependentKind::Secret, setting.origin);
                let known = |row: &DependentCopy| case.copy.as_ref().is_some_and(|(uid, _)| *uid == row.uid);
                let ours = |row: &DependentCopy| (row.ours && row.name == call.target.name) || known(row);
                let row = row.ok().flatten().filter(ours).map(|mut row| {
                    row.adopt_for_pod(vuid);
                    row
                });
                if why != Why::LookForToken {
                    case.issued = Some(setting.now.steady);
                    case.wrote = row.as_ref().and_then(DependentCopy::print);
                }
                if let Some(row) = row {
                    self.put_copy(DependentKind::Secret, row, None, setting.origin, dirty);
                } else {
                    case.look = Look::Foreign(setting.now.steady);
                    case.failure = Some(foreign_text(&call.target.name));
                    if case.failure != before {
                        news.clone_from(&case.failure);
                    }
                }
            }
            (Why::RefreshToken, Err(Refusal::Gone)) => {
                if let Some(uid) = &call.target.uid {
                    case.lose_to_others(uid);
                    self.copies[DependentKind::Secret as usize].remove(uid);
                }
            }
            // Changed since we looked, or gone: if it is still ours, the watch brings it back.
            (Why::RemoveToken | Why::ReplaceToken, Ok(_) | Err(Refusal::Gone | Refusal::Replaced)) => {
                if let Some(uid) = &call.target.uid {
                    case.lose(uid);
                    self.copies[DependentKind::Secret as usize].remove(uid);
                }
            }
            (Why::CreateToken, Err(Refusal::Exists)) => case.look = Look::Taken,
            (Why::LookForToken, Err(Refusal::Gone)) => case.look = Look::Unknown,
            (Why::RefreshToken, Err(refused)) if refused.is_fixed() => case.fixed = true,
            (Why::CreateToken | Why::RefreshToken, Err(refused @ (Refusal::Invalid(_) | Refusal::Denied(_)))) => {
                let failure: Box<str> = refused.message().into();
                if why == Why::RefreshToken && case.failure.as_ref() != Some(&failure) {
                    news = Some(failure.clone());
                }
                case.failure = Some(failure);
            }
            // Not what we looked at, or no answer: the watch brings the truth, the next plan is made from it.
            (
                Why::CreateToken | Why::RefreshToken | Why::LookForToken | Why::ReplaceToken | Why::RemoveToken,
                Err(_),
            ) => return None,
        }
        dirty.mark(Key::Token(vuid.clone()));
        dirty.mark(Key::Pod(vuid.clone()));
        self.drop_token(vuid);
        // A pod that has not started says it in its condition.
        news.filter(|_| self.users.get(&Who::Pod(vuid.clone())).is_some_and(|user| user.copied))
    }
}

fn contested_text(secret: &Name) -> Box<str> {
    format!(
        "another client keeps deleting Secret {secret} in the physical cluster; it is created again within ten minutes"
    )
    .into()
}

fn foreign_text(secret: &Name) -> Box<str> {
    format!("Secret {secret} in the mount namespace was not created by this binding: delete it").into()
}

fn secret(setting: &Setting<'_>, name: Name) -> Target {
    Target::namespaced(Side::Physical, &kind::SECRET, setting.mount.clone(), name)
}

fn issue(wanted: &Wanted, vuid: &Uid, setting: &Setting<'_>) -> Option<Verb> {
    let account = wanted.needs.account()?.clone();
    let account = Target::namespaced(Side::Virtual, &kind::SERVICE_ACCOUNT, wanted.namespace.clone(), account);
    Some(Verb::Token {
        account: Box::new(account),
        pod: Box::new(PodRef { name: wanted.pod.clone(), uid: vuid.clone() }),
        asks: wanted.asks().to_vec(),
        marks: Box::new(setting.origin.marks()),
    })
}
