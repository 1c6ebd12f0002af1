//! Cuts the body of a watch into lines and each line into type and object, without parsing the object.
//! Knows no kind.

use bytes::{Buf as _, Bytes, BytesMut};

/// The longest line we hold: etcd refuses objects over 1.5 MB, an event adds little.
const LONGEST: usize = 32 << 20;

/// Lines out of chunks.
#[derive(Default)]
pub(crate) struct Lines {
    held: BytesMut,
    /// Up to here there is no newline.
    searched: usize,
}

impl Lines {
    /// Adds a chunk. False: a line is longer than any object can be, so the stream is not a watch.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> bool {
        self.held.extend_from_slice(chunk);
        self.held.len() <= LONGEST
    }

    /// The next whole line. Bytes after the last newline stay: a truncated object is never returned.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let found = self.held[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(offset) = found else {
            self.searched = self.held.len();
            return None;
        };
        let line = self.held.split_to(self.searched + offset).freeze();
        self.held.advance(1);
        self.searched = 0;
        Some(line)
    }
}

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// ADDED or MODIFIED.
    Put,
    /// DELETED, which on a selector watch may also mean "no longer selected".
    Deleted,
    /// BOOKMARK.
    Bookmark,
    /// ERROR; the object is a Status.
    Error,
}

/// Splits `{"type":"ADDED","object":{…}}`. The server writes `type` first and no spaces;
/// anything else takes a slower path.
pub(crate) fn split(line: &Bytes) -> Option<(Event, Bytes)> {
    const HEAD: &[u8] = br#"{"type":""#;
    const MIDDLE: &[u8] = br#"","object":"#;
    let quick = || {
        let rest = line.strip_prefix(HEAD)?;
        let end = rest.iter().position(|byte| *byte == b'"')?;
        let object = rest[end..].strip_prefix(MIDDLE)?.strip_suffix(b"}")?;
        Some((event(&rest[..end])?, line.slice_ref(object)))
    };
    quick().or_else(|| {
        #[derive(serde::Deserialize)]
        struct Frame<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a serde_json::value::RawValue,
        }
        let frame: Frame<'_> = serde_json::from_slice(line).ok()?;
        Some((event(frame.r#type.as_bytes())?, line.slice_ref(frame.object.get().as_bytes())))
    })
}

fn event(text: &[u8]) -> Option<Event> {
    match text {
        b"ADDED" | b"MODIFIED" => Some(Event::Put),
        b"DELETED" => Some(Event::Deleted),
        b"BOOKMARK" => Some(Event::Bookmark),
        b"ERROR" => Some(Event::Error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_the_stream_is_cut() {
        let stream = b"{\"a\":1}\n{\"b\":2}\n{\"cut";
        for size in 1..stream.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for chunk in stream.chunks(size) {
                assert!(lines.push(chunk));
                while let Some(line) = lines.next() {
                    seen.push(line);
                }
            }
            assert_eq!(seen, ["{\"a\":1}", "{\"b\":2}"], "chunks of {size}");
        }
    }

    #[test]
    fn the_fast_and_the_slow_path_split_an_event_alike() {
        for line in [r#"{"type":"ADDED","object":{"x":"}"}}"#, r#"{ "object": {"x":"}"}, "type": "ADDED" }"#] {
            let (event, object) = split(&Bytes::from_static(line.as_bytes())).unwrap();
            assert_eq!((event, &object[..]), (Event::Put, &br#"{"x":"}"}"#[..]));
        }
        assert!(split(&Bytes::from_static(b"<html>")).is_none());
    }
}
