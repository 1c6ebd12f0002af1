//! What can go wrong between a client and an API server. Must not decide when.

use std::fmt;
use std::time::Duration;

use http::{Response, StatusCode, header};
use serde_json::{Value, json};

/// What happens to a request that a rule selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No answer, and nothing more on a stream, until the fault ends. Then everything continues, late.
    Freeze,
    /// The head of the answer passes and nothing of its body, until the fault ends: a proxy that buffers streams. Also on
    /// streams that are open already.
    HeadOnly,
    /// The request waits this long before it goes to the API server.
    Delay(Duration),
    /// The request is reset (over HTTP/1.1 with its connection, over HTTP/2 its stream alone); the API server does not
    /// receive it.
    Reset,
    /// The connection is reset, with all that it carries. Also when it carries a stream that is open already, at once.
    ResetConnection,
    /// The connection goes dead and stays so: nothing is read from it or sent on it, no PING is answered, and it is not
    /// closed. Also when it carries a stream that is open already, at once. Other connections live.
    FreezeConnection,
    /// 429 with this `Retry-After`, in seconds.
    TooManyRequests(u32),
    /// 500.
    InternalError,
    /// 410 as the answer.
    Expired,
    /// 410 as an ERROR event on a stream, which ends then. Also on streams that are open already, at once.
    ExpiredEvent,
    /// The stream ends in the middle of the next object, as if it were complete.
    Truncated,
    /// The API server carries it out, and the request is reset before its answer arrives.
    LostAnswer,
    /// Answers and streams come in pieces of this many bytes, this far apart.
    Trickle(usize, Duration),
    /// 404 from a load balancer, in HTML.
    HtmlNotFound,
    /// 404 with `{}`: JSON, but no Status.
    EmptyNotFound,
}

/// When a fault applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before the request goes to the API server.
    Request,
    /// When the API server has answered.
    Answer,
    /// Between two pieces of a body.
    Between,
    /// When a piece of a body has come.
    Piece,
}

impl Fault {
    pub(crate) fn applies_at(&self, moment: Moment) -> bool {
        match self {
            // The body asks for itself.
            Self::HeadOnly => false,
            Self::LostAnswer => moment == Moment::Answer,
            Self::ExpiredEvent => moment == Moment::Between,
            Self::ResetConnection | Self::FreezeConnection => matches!(moment, Moment::Request | Moment::Between),
            Self::Truncated | Self::Trickle(..) => moment == Moment::Piece,
            _ => moment == Moment::Request,
        }
    }

    /// What the client gets instead of the API server's answer; `None` when the fault sends no answer.
    pub(crate) fn answer(&self) -> Option<Response<String>> {
        let json = "application/json";
        Some(match self {
            Self::TooManyRequests(seconds) => {
                let body = status(429, "TooManyRequests", "the server has received too many requests");
                let mut response = answer(StatusCode::TOO_MANY_REQUESTS, json, body.to_string());
                response.headers_mut().insert(header::RETRY_AFTER, (*seconds).into());
                response
            }
            Self::InternalError => {
                let body = status(500, "InternalError", "an error on the server has prevented the request");
                answer(StatusCode::INTERNAL_SERVER_ERROR, json, body.to_string())
            }
            Self::Expired => answer(StatusCode::GONE, json, expired().to_string()),
            Self::HtmlNotFound => {
                let page = "<html><body><h1>404 Not Found</h1>default backend</body></html>";
                answer(StatusCode::NOT_FOUND, "text/html", page.to_owned())
            }
            Self::EmptyNotFound => answer(StatusCode::NOT_FOUND, json, "{}".to_owned()),
            _ => return None,
        })
    }
}

/// The line of a stream that says 410.
pub(crate) fn expired_event() -> String {
    format!("{}\n", json!({ "type": "ERROR", "object": expired() }))
}

fn expired() -> Value {
    status(410, "Expired", "too old resource version: 1 (2)")
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

pub(crate) fn answer(code: StatusCode, content: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content));
    response
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
