//! Calls that consist of several requests, as the gate carries them out: the same requests, judged and shaped by the same
//! functions. Nothing happens between them: only the last one writes, so a crash or a lost answer before it changes nothing,
//! and one after it is that of any other call.

use serde_json::json;
use tapestry_cluster::call::TokenAsk;
use tapestry_cluster::call::carry::{Carry, hide_values};
use tapestry_cluster::call::token::Tokens;
use tapestry_cluster::{Answer, Name, Refusal, kind};

use super::server::{Denial, path, seconds};
use super::{World, index};

/// The shortest life of a token that Kubernetes grants.
const SHORTEST: i64 = 600;
/// Kubernetes creates it in every namespace.
const DEFAULT_ACCOUNT: &str = "default";

impl World {
    /// See [`tapestry_cluster::Verb::Carry`].
    pub(super) fn carry(&mut self, carry: Carry<'_>) -> Result<Answer, Refusal> {
        let copy = match carry.read_copy() {
            None => None,
            Some(read) => Some(carry.judge_copy(self.call(&read))?),
        };
        let source = carry.judge_source(self.call(&carry.read_source()))?;
        match (carry.write(&source, copy.as_ref())?, copy) {
            (Some(write), copy) => {
                let read: Vec<&Answer> = [Some(&source), copy.as_ref()].into_iter().flatten().collect();
                self.call(&write).map_err(|refusal| hide_values(&write, &read, refusal))
            }
            (None, Some(copy)) => Ok(copy),
            (None, None) => Err(Refusal::Unknown("nothing to write".to_owned())),
        }
    }

    /// See [`tapestry_cluster::Verb::Token`].
    pub(super) fn issue_tokens(&mut self, tokens: Tokens<'_>) -> Result<Answer, Refusal> {
        let mut grants = Vec::new();
        for ask in tokens.asks {
            let answer = self.issue_token(&tokens, ask).map_err(|denial| {
                let (code, body) = denial.answer();
                tokens.classify(code, body.as_bytes(), None)
            })?;
            grants.push(tokens.read(ask, answer.as_bytes())?);
        }
        let write = tokens.write(&grants);
        self.call(&write).map_err(|refusal| hide_values(&write, &[], refusal))
    }

    /// Answers a request for a token as a real server does. The token says what it is for and when it was issued.
    fn issue_token(&self, tokens: &Tokens<'_>, ask: &TokenAsk) -> Result<String, Denial> {
        let server = &self.servers[index(tokens.account.side)];
        let namespace = tokens.account.namespace.as_ref().map(Name::as_str);
        let (account, pod) = (tokens.account.name.as_str(), tokens.pod.name.as_str());
        if account != DEFAULT_ACCOUNT && server.find(&kind::SERVICE_ACCOUNT, &path(namespace, account)).is_none() {
            return Err(Denial::not_found(&kind::SERVICE_ACCOUNT, account));
        }
        if ask.expiration_seconds < SHORTEST {
            return Err(Denial::invalid("spec.expirationSeconds", "may not specify a duration less than 10 minutes"));
        }
        let Some(object) = server.find(&kind::POD, &path(namespace, pod)) else {
            return Err(Denial::not_found(&kind::POD, pod));
        };
        if object.value()["spec"]["serviceAccountName"].as_str().unwrap_or(DEFAULT_ACCOUNT) != account {
            return Err(Denial::bad_request("the pod runs with another service account"));
        }
        if *object.uid() != tokens.pod.uid {
            return Err(Denial::conflict(&kind::POD, pod, "the UID in the bound object reference does not match"));
        }
        let now = self.now.wall;
        let until = now + jiff::SignedDuration::from_secs(ask.expiration_seconds);
        let audience = ask.audience.as_deref().unwrap_or("api");
        let token = format!("token-{account}-{audience}-{}-{}", tokens.pod.uid, now.as_millisecond());
        let status = json!({"token": token, "expirationTimestamp": seconds(until)});
        Ok(json!({"metadata": {"creationTimestamp": seconds(now)}, "status": status}).to_string())
    }
}

#[cfg(test)]
mod tests;
