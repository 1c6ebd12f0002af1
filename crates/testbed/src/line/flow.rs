//! The body of an answer on its way to the client: a list, or a watch that goes on for hours.
//! Must not understand objects; it knows where lines end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::watch;

use super::asked::Asked;
use super::carry::Torn;
use super::fault::{Fault, Moment, expired_event};
use super::rules::Rules;

struct Flow {
    body: Incoming,
    asked: Asked,
    rules: Arc<Rules>,
    changes: watch::Receiver<u64>,
    /// Came, and waits to be sent, this far apart.
    pieces: VecDeque<Bytes>,
    apart: Duration,
    /// Whether the client has whole lines only.
    whole_lines: bool,
    ended: bool,
}

/// Passes a body on.
pub(super) fn flow(body: Incoming, asked: Asked, rules: Arc<Rules>) -> UnsyncBoxBody<Bytes, Torn> {
    let changes = rules.changes();
    let flow = Flow {
        body,
        asked,
        rules,
        changes,
        pieces: VecDeque::new(),
        apart: Duration::ZERO,
        whole_lines: true,
        ended: false,
    };
    StreamBody::new(unfold(flow, |mut flow: Flow| async move {
        let piece = flow.next().await?;
        Some((piece.map(Frame::data), flow))
    }))
    .boxed_unsync()
}

impl Flow {
    async fn next(&mut self) -> Option<Result<Bytes, Torn>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                tokio::time::sleep(self.apart).await;
                return Some(Ok(self.passed(piece)));
            }
            if self.ended {
                return None;
            }
            self.wait_for_sound().await;
            let ends = self.asked.verb == "watch" && self.whole_lines;
            if ends && self.rules.strike(&self.asked, Moment::Between) == Some(Fault::ExpiredEvent) {
                self.ended = true;
                return Some(Ok(expired_event().into()));
            }
            let frame = tokio::select! {
                frame = self.body.frame() => frame,
                // The rules say more than before.
                Ok(()) = self.changes.changed() => continue,
            };
            let piece = match frame? {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                // As if the client had been connected to the server itself.
                Err(_) => return Some(Err(Torn)),
            };
            self.wait_for_sound().await;
            match self.rules.strike(&self.asked, Moment::Piece) {
                Some(Fault::Truncated) => {
                    self.ended = true;
                    return Some(Ok(self.passed(piece.slice(..middle_of_last_line(&piece)))));
                }
                Some(Fault::Trickle(size, apart)) => {
                    self.apart = apart;
                    let size = size.max(1);
                    self.pieces = (0..piece.len())
                        .step_by(size)
                        .map(|start| piece.slice(start..(start + size).min(piece.len())))
                        .collect();
                }
                _ => return Some(Ok(self.passed(piece))),
            }
        }
    }

    fn passed(&mut self, piece: Bytes) -> Bytes {
        self.whole_lines = piece.last().map_or(self.whole_lines, |last| *last == b'\n');
        piece
    }

    async fn wait_for_sound(&mut self) {
        while self.rules.silences(&self.asked) {
            if self.changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Where to end so that the last line has begun and is not complete.
fn middle_of_last_line(bytes: &[u8]) -> usize {
    let line_end = bytes.len() - usize::from(bytes.ends_with(b"\n"));
    let start = bytes[..line_end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    start + (line_end - start) / 2
}
