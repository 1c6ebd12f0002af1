//! The body of an answer on its way to the client: a list, or a watch that lasts for hours.
//! Must not parse objects; it only knows where lines end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::watch;

use super::fault::{Fault, Moment, expired_event};
use super::forward::ConnectionReset;
use super::link::Link;
use super::request_info::RequestInfo;
use super::rules::Rules;

struct RelayedBody {
    body: Incoming,
    info: RequestInfo,
    link: Arc<Link>,
    rules: Arc<Rules>,
    changes: watch::Receiver<u64>,
    /// Received, and not sent yet; `apart` passes between two of them.
    pieces: VecDeque<Bytes>,
    apart: Duration,
    /// Whether the client has whole lines only.
    whole_lines: bool,
    ended: bool,
}

/// Passes a body on, with the faults that the rules inject.
pub(super) fn relay(
    body: Incoming,
    info: RequestInfo,
    link: Arc<Link>,
    rules: Arc<Rules>,
) -> UnsyncBoxBody<Bytes, ConnectionReset> {
    let changes = rules.changes();
    let relayed = RelayedBody {
        body,
        info,
        link,
        rules,
        changes,
        pieces: VecDeque::new(),
        apart: Duration::ZERO,
        whole_lines: true,
        ended: false,
    };
    StreamBody::new(unfold(relayed, |mut relayed: RelayedBody| async move {
        let piece = relayed.next().await?;
        Some((piece.map(Frame::data), relayed))
    }))
    .boxed_unsync()
}

impl RelayedBody {
    async fn next(&mut self) -> Option<Result<Bytes, ConnectionReset>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                tokio::time::sleep(self.apart).await;
                return Some(Ok(self.passed(piece)));
            }
            if self.ended {
                return None;
            }
            self.wait_while_frozen().await;
            let between = self.info.verb == "watch" && self.whole_lines;
            match between.then(|| self.rules.hit(&self.info, Moment::Between)).flatten() {
                Some(Fault::ExpiredEvent) => {
                    self.ended = true;
                    return Some(Ok(expired_event().into()));
                }
                Some(Fault::FreezeConnection) => {
                    self.link.freeze();
                    return std::future::pending().await;
                }
                Some(Fault::ResetConnection) => {
                    self.link.reset();
                    return Some(Err(ConnectionReset));
                }
                _ => {}
            }
            let frame = tokio::select! {
                frame = self.body.frame() => frame,
                // The rules have changed.
                Ok(()) = self.changes.changed() => continue,
            };
            let piece = match frame? {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                // As if the client was connected to the server itself.
                Err(_) => return Some(Err(ConnectionReset)),
            };
            self.wait_while_frozen().await;
            match self.rules.hit(&self.info, Moment::Piece) {
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

    async fn wait_while_frozen(&mut self) {
        while self.rules.freezes_stream(&self.info) {
            if self.changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Where to cut so that the last line is incomplete.
fn middle_of_last_line(bytes: &[u8]) -> usize {
    let line_end = bytes.len() - usize::from(bytes.ends_with(b"\n"));
    let start = bytes[..line_end].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    start + (line_end - start) / 2
}
