//! Calls that read something and write what was shaped of it, all inside the gate: Carry and Token.
//! What was read leaves the gate only in what is written; it reaches no log and no error text.

use std::time::Instant;

use tapestry_domain::tokens::Grant;

use super::{Requests, build, exchange};
use crate::call::TokenAsk;
use crate::call::carry::{Carry, hide_values};
use crate::call::token::Tokens;
use crate::{Answer, Call, Refusal};

impl Requests<'_> {
    /// Reads the copy if there is one, reads the source, and writes the copy if it differs.
    pub(super) async fn carry(&self, call: &Call) -> Result<Answer, Refusal> {
        let carry = Carry::of(call).ok_or_else(|| not_such(call))?;
        let copy = match carry.read_copy() {
            None => None,
            Some(read) => Some(carry.judge_copy(self.send(&read).await)?),
        };
        let source = carry.judge_source(self.send(&carry.read_source()).await)?;
        match (carry.write(&source, copy.as_ref())?, copy) {
            (Some(write), copy) => {
                let read: Vec<&Answer> = [Some(&source), copy.as_ref()].into_iter().flatten().collect();
                self.write(&write, &read).await
            }
            (None, Some(copy)) => Ok(copy),
            (None, None) => Err(not_such(call)),
        }
    }

    /// Asks for one token after the other, and writes them all at once.
    pub(super) async fn issue_tokens(&self, call: &Call) -> Result<Answer, Refusal> {
        let tokens = Tokens::of(call).ok_or_else(|| not_such(call))?;
        let mut grants = Vec::with_capacity(tokens.asks.len());
        for ask in tokens.asks {
            let start = Instant::now();
            let done = self.request_token(&tokens, ask).await;
            self.metrics.count_token(call, tokens.account.side, &done, start.elapsed());
            grants.push(done?);
        }
        self.write(&tokens.write(&grants), &[]).await
    }

    async fn request_token(&self, tokens: &Tokens<'_>, ask: &TokenAsk) -> Result<Grant, Refusal> {
        let cluster = self.clusters.of(tokens.account.side)?;
        let body = tokens.request(ask);
        let request = build("POST", tokens.path(), Some(("application/json", &body)));
        let (code, retry_after, body) = exchange(cluster, request, self.lead, self.deadline).await?;
        if (200..300).contains(&code) {
            return tokens.read(ask, &body);
        }
        Err(tokens.classify(code, &body, retry_after))
    }

    /// Sends the last request, for which these objects were read.
    async fn write(&self, write: &Call, read: &[&Answer]) -> Result<Answer, Refusal> {
        self.send(write).await.map_err(|refusal| hide_values(write, read, refusal))
    }
}

fn not_such(call: &Call) -> Refusal {
    Refusal::Unknown(format!("cannot be carried out: {call}"))
}

#[cfg(test)]
mod tests;
