//! Reads the body of an answer up to the largest size of what was asked for (law 11): a peer that sends endlessly costs no
//! memory. Must not parse the body.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use crate::no_answer::NoAnswer;

/// What was asked for; it limits the size of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// One object, or a Status.
    Object,
    /// A page of a list.
    Page,
    /// A discovery document.
    Discovery,
}

impl Asked {
    /// The largest size of the answer, in MiB.
    #[must_use]
    pub fn mebibytes(self) -> usize {
        match self {
            // etcd stores 1.5 MiB; the same as JSON takes a few times that.
            Self::Object => 8,
            // 500 objects of 128 KiB, and pods have 2 to 20.
            Self::Page => 64,
            // A thousand resources of half a KiB each have half a MiB.
            Self::Discovery => 4,
        }
    }
}

/// Reads a body to its end.
pub(crate) async fn read_whole(mut body: Incoming, asked: Asked) -> Result<Bytes, NoAnswer> {
    let most = asked.mebibytes() << 20;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > most {
        return Err(NoAnswer::TooLong(asked));
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| NoAnswer::of(&error))?.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(NoAnswer::TooLong(asked));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}
