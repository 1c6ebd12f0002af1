//! Why a request has no usable answer, and what users can do about it.
//! Never quotes what the peer sent.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use crate::body::Asked;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No connection, or it broke.
    #[error("{0}")]
    Broken(String),
    /// The deadline passed.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The CA of the kubeconfig has not signed the certificate of the server.
    #[error("the CA in the kubeconfig did not sign the certificate of the API server ({0})")]
    UnknownCa(String),
    /// The certificate of the server is refused for another reason.
    #[error("the certificate of the API server cannot be trusted ({0})")]
    BadCertificate(String),
    /// The answer is longer than the limit for what was asked for.
    #[error(
        "the answer has more than {} MiB, more than an API server would send here; the rest was not read",
        .0.mebibytes()
    )]
    TooLong(Asked),
}

impl NoAnswer {
    /// What the owner of the kubeconfig can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Broken(_) | Self::Late(_) => "check that the API server runs, and its address in the kubeconfig",
            Self::UnknownCa(_) => {
                "put the CA of this API server into certificate-authority-data of the kubeconfig, or check the address there"
            }
            Self::BadCertificate(_) => {
                "check that the API server's certificate is valid today, and server and tls-server-name in the kubeconfig"
            }
            Self::TooLong(_) => "check that the address in the kubeconfig is that of a Kubernetes API server",
        }
    }

    /// What an error of the client means. The innermost cause says what happened ("connection refused"); the outer ones only
    /// say where.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let Some(mut io) = cause.downcast_ref::<io::Error>() else { return Self::Broken(cause.to_string()) };
        // The inner error of an I/O error is not its source.
        while let Some(inner) = io.get_ref().and_then(|inner| inner.downcast_ref::<io::Error>()) {
            io = inner;
        }
        let tls = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => Self::UnknownCa(io.to_string()),
            Some(rustls::Error::InvalidCertificate(_)) => Self::BadCertificate(io.to_string()),
            // The message of the TLS library contains the address of its manual.
            None if io.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Broken("the connection was closed before the answer was complete".to_owned())
            }
            Some(_) | None => Self::Broken(io.to_string()),
        }
    }
}

impl From<NoAnswer> for String {
    fn from(why: NoAnswer) -> Self {
        why.to_string()
    }
}

#[cfg(test)]
mod tests;
