//! From the text of a kubeconfig to a configuration that a client can be built from: refuses what is dangerous (law 10), trims
//! what is harmless, checks every value that ends in a header, a URL, a certificate or a key.
//! Never quotes a value: any of them may contain a token. Must not panic on any text.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;

use http::HeaderValue;
use k8s_openapi::ByteString;
use kube::Config;
use kube::client::AuthError;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::{ExposeSecret, SecretString};

use crate::connect::{ConnectError, Trust};

/// A longer server URL may become invalid with the path of a request appended.
const URL_BYTES: usize = 2048;

/// An unusable value of a kubeconfig. Names the field, never the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its {field} {fault}")]
pub struct BadValue {
    /// The field's name in the kubeconfig.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What can be wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not a valid bearer token.
    #[error("contains a space, a line break or another character that no token has; write the token on one line")]
    NotAToken,
    /// Not valid in a header.
    #[error("contains a line break or another character that cannot be sent in a header")]
    NotAHeader,
    /// A user name with a colon: basic authentication would split it there.
    #[error("contains a colon, which ends a user name")]
    Colon,
    /// Not an absolute URL with a host.
    #[error("is not a URL such as https://host:6443")]
    NotAUrl,
    /// A URL with a user name or password in it.
    #[error("contains a user name or password; put them into the user entry")]
    Userinfo,
    /// Neither a host name nor an address.
    #[error("is neither a host name nor an IP address")]
    NotAHost,
    /// Not base64.
    #[error("is not base64")]
    NotBase64,
    /// Not a PEM certificate.
    #[error("is not the base64 of a PEM certificate")]
    NotACertificate,
    /// Not a PEM private key.
    #[error("is not the base64 of a PEM private key")]
    NotAKey,
    /// The other half of the pair is missing.
    #[error("is missing; a client certificate and its key go together")]
    Missing,
}

impl Fault {
    fn of(self, field: &'static str) -> BadValue {
        BadValue { field, fault: self }
    }
}

/// The configuration of this kubeconfig's current context.
pub(crate) async fn load(text: &str, trust: Trust) -> Result<Config, ConnectError> {
    let parsed = Kubeconfig::from_yaml(text).map_err(|error| unreadable(&error))?;
    load_parsed(parsed, trust, None).await
}

/// The configuration that kubectl would use: of this file, or else of `$KUBECONFIG`, `~/.kube/config`, or the cluster that this
/// process runs in; of this context, or else of the current one.
pub async fn find(path: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let read = match (path, std::env::var_os("KUBECONFIG")) {
        (Some(path), _) => Kubeconfig::read_from(path).map_err(|error| unreadable(&error)),
        (None, Some(list)) if !list.is_empty() => read_list(&list),
        (None, _) => Kubeconfig::read().map_err(|error| unreadable(&error)),
    };
    let found = match read {
        Ok(parsed) => load_parsed(parsed, Trust::Operator, context).await,
        Err(error) => Err(error),
    };
    match (found, path, context) {
        (Err(error), None, None) => match Config::incluster() {
            Ok(mut config) => check(&mut config).map(|()| config),
            Err(_) => Err(error),
        },
        (found, ..) => found,
    }
}

/// The files that `$KUBECONFIG` names; files that do not exist are skipped.
fn read_list(list: &OsStr) -> Result<Kubeconfig, ConnectError> {
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()) {
        let read = match Kubeconfig::read_from(path) {
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => continue,
            read => read.and_then(|next| merged.take().unwrap_or_default().merge(next)),
        };
        merged = Some(read.map_err(|error| unreadable(&error))?);
    }
    let none =
        || ConnectError::UnreadableKubeconfig(format!("no file that $KUBECONFIG names exists: {}", list.display()));
    merged.ok_or_else(none)
}

async fn load_parsed(mut parsed: Kubeconfig, trust: Trust, context: Option<&str>) -> Result<Config, ConnectError> {
    tidy(&mut parsed);
    if let Trust::Secret { allow_insecure } = trust {
        refuse_dangerous(&parsed, allow_insecure)?;
    }
    let proxied = names_proxy(&parsed, context);
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..Default::default() };
    // This reads the files that the kubeconfig names, so refuse dangerous ones before it.
    let loaded = Config::from_custom_kubeconfig(parsed, &options).await;
    let mut config = loaded.map_err(|error| match (error, context) {
        (KubeconfigError::LoadContext(_), Some(name)) => {
            ConnectError::UnreadableKubeconfig(format!("it has no context {name:?}"))
        }
        (error, _) => unreadable(&error),
    })?;
    // We must notice within seconds that an API server is dead (law 11); through a proxy we would only notice that the proxy is.
    if proxied {
        return Err(ConnectError::RefusedKubeconfig(
            "proxy-url is not supported; remove it and make sure that the API server can be reached without a proxy"
                .to_owned(),
        ));
    }
    if config.proxy_url.take().is_some() && trust == Trust::Operator {
        tracing::warn!("HTTPS_PROXY is set and not used: API servers are reached without a proxy");
    }
    check(&mut config)?;
    Ok(config)
}

/// Whether the cluster of this context, or else of the current one, is to be reached through a proxy.
fn names_proxy(kubeconfig: &Kubeconfig, context: Option<&str>) -> bool {
    let context = context.or(kubeconfig.current_context.as_deref());
    let context = kubeconfig.contexts.iter().find(|known| Some(known.name.as_str()) == context);
    let cluster = context.and_then(|known| Some(known.context.as_ref()?.cluster.as_str()));
    let named = kubeconfig.clusters.iter().find(|known| Some(known.name.as_str()) == cluster);
    let proxy = named.and_then(|known| known.cluster.as_ref()?.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Removes white space around a value, usually a line break at its end. kubectl does the same with base64.
fn tidy(kubeconfig: &mut Kubeconfig) {
    let trim = |value: &mut Option<String>| {
        if let Some(text) = value.as_mut().filter(|text| text.trim().len() < text.len()) {
            *text = text.trim().to_owned();
        }
    };
    let close_up = |value: &mut Option<String>| {
        if let Some(text) = value {
            text.retain(|character| !character.is_ascii_whitespace());
        }
    };
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
        tidy_token(user);
        trim(&mut user.username);
        trim(&mut user.impersonate);
        trim(&mut user.impersonate_uid);
        close_up(&mut user.client_certificate_data);
        if let Some(key) = &user.client_key_data {
            let mut key = Some(key.expose_secret().to_owned());
            close_up(&mut key);
            user.client_key_data = key.map(SecretString::from);
        }
    }
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
        trim(&mut cluster.server);
        trim(&mut cluster.tls_server_name);
        trim(&mut cluster.proxy_url);
        close_up(&mut cluster.certificate_authority_data);
    }
}

fn tidy_token(user: &mut AuthInfo) {
    let token = user.token.as_ref().map(|token| token.expose_secret().trim());
    // Empty means none, as for kubectl.
    user.token = token.filter(|token| !token.is_empty()).map(SecretString::from);
}

/// Checks every value that a client is built from, whatever its source.
pub(crate) fn check(config: &mut Config) -> Result<(), ConnectError> {
    tidy_token(&mut config.auth_info);
    check_user(&config.auth_info)?;
    check_server(config)?;
    Ok(())
}

fn check_user(user: &AuthInfo) -> Result<(), BadValue> {
    if let Some(token) = &user.token
        && !token.expose_secret().bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(Fault::NotAToken.of("token"));
    }
    if user.username.as_ref().is_some_and(|name| name.contains(':')) {
        return Err(Fault::Colon.of("username"));
    }
    let headers = [("as", &user.impersonate), ("as-uid", &user.impersonate_uid), ("username", &user.username)];
    let singles = headers.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?)));
    let groups = user.impersonate_groups.iter().flatten().map(|group| ("as-groups", group));
    let extra =
        user.impersonate_user_extra.iter().flatten().flat_map(|(key, values)| std::iter::once(key).chain(values));
    for (field, value) in singles.chain(groups).chain(extra.map(|value| ("as-user-extra", value))) {
        HeaderValue::from_str(value).map_err(|_| Fault::NotAHeader.of(field))?;
    }
    let certificate = user.client_certificate_data.as_deref();
    let key = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    if let Some(data) = certificate {
        let pem = decode(data).ok_or(Fault::NotBase64.of("client-certificate-data"))?;
        check_certificates(&pem).map_err(|fault| fault.of("client-certificate-data"))?;
    }
    if let Some(data) = key {
        let pem = decode(data).ok_or(Fault::NotBase64.of("client-key-data"))?;
        PrivateKeyDer::from_pem_slice(&pem).map_err(|_| Fault::NotAKey.of("client-key-data"))?;
    }
    let has = |data: bool, path: &Option<String>| data || path.is_some();
    match (has(certificate.is_some(), &user.client_certificate), has(key.is_some(), &user.client_key)) {
        (true, false) => Err(Fault::Missing.of("client-key-data")),
        (false, true) => Err(Fault::Missing.of("client-certificate-data")),
        _ => Ok(()),
    }
}

fn check_server(config: &Config) -> Result<(), BadValue> {
    let url = &config.cluster_url;
    let bad = |fault: Fault| Err(fault.of("server"));
    let Some(authority) = url.authority().filter(|authority| !authority.host().is_empty()) else {
        return bad(Fault::NotAUrl);
    };
    if !matches!(url.scheme_str(), Some("https" | "http")) || url.to_string().len() > URL_BYTES {
        return bad(Fault::NotAUrl);
    }
    if authority.as_str().contains('@') {
        return bad(Fault::Userinfo);
    }
    // The client would replace a port that is not a number with the default one.
    if authority.as_str().len() > authority.host().len() && authority.port_u16().is_none() {
        return bad(Fault::NotAUrl);
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if ServerName::try_from(host).is_err() {
        return bad(Fault::NotAHost);
    }
    if config.tls_server_name.as_deref().is_some_and(|name| ServerName::try_from(name).is_err()) {
        return Err(Fault::NotAHost.of("tls-server-name"));
    }
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err(Fault::NotACertificate.of("certificate-authority-data"));
    }
    Ok(())
}

/// Base64, as Kubernetes writes bytes.
fn decode(data: &str) -> Option<Vec<u8>> {
    let ByteString(bytes) = serde_json::from_value(data.into()).ok()?;
    Some(bytes)
}

fn check_certificates(pem: &[u8]) -> Result<(), Fault> {
    let mut certificates = CertificateDer::pem_slice_iter(pem);
    let first = certificates.next().is_some_and(|first| first.is_ok());
    if first && certificates.all(|next| next.is_ok()) { Ok(()) } else { Err(Fault::NotACertificate) }
}

/// kube's error about a kubeconfig, without the parts that quote it.
fn unreadable(error: &KubeconfigError) -> ConnectError {
    use KubeconfigError as E;
    let file = |what: &str, error: &LoadDataError| match error {
        LoadDataError::ReadFile(error, path) => format!("{what}: cannot read {}: {error}", path.display()),
        _ => format!("{what} is not base64"),
    };
    let why = match error {
        E::CurrentContextNotSet => "it has no current-context".to_owned(),
        E::LoadContext(_) => "its current-context names no context".to_owned(),
        E::LoadClusterOfContext(_) => "its context names no cluster".to_owned(),
        E::MissingClusterUrl => "its cluster has no server".to_owned(),
        E::ParseClusterUrl(_) => return Fault::NotAUrl.of("server").into(),
        E::ParseProxyUrl(_) => return Fault::NotAUrl.of("proxy-url").into(),
        E::ParseCertificates(_) => return Fault::NotACertificate.of("certificate-authority-data").into(),
        E::LoadCertificateAuthority(error) => file("certificate-authority", error),
        E::LoadClientCertificate(error) => file("client-certificate", error),
        E::LoadClientKey(error) => file("client-key", error),
        E::FindPath => "there is none: neither $KUBECONFIG nor ~/.kube/config".to_owned(),
        E::ReadConfig(error, path) => format!("{}: {error}", path.display()),
        E::KindMismatch | E::ApiVersionMismatch => "its documents are of different kinds".to_owned(),
        // The parser's own text quotes the line.
        E::Parse(_) => "it is not the YAML of a kubeconfig".to_owned(),
        #[allow(unreachable_patterns, reason = "kube has more variants with other features")]
        _ => "it cannot be used".to_owned(),
    };
    ConnectError::UnreadableKubeconfig(why)
}

/// kube's error when it builds a client, without the output of a program: that may be a token.
pub(crate) fn unbuildable(error: &kube::Error) -> ConnectError {
    ConnectError::BuildClient(match error {
        kube::Error::Auth(AuthError::AuthExecRun { out, .. }) => format!("the exec plugin failed: {}", out.status),
        kube::Error::Auth(AuthError::AuthExecParse(_)) => "the exec plugin did not print a credential".to_owned(),
        other => other.to_string(),
    })
}

/// Refuses kubeconfigs that would run programs, read files or send credentials unencrypted.
fn refuse_dangerous(kubeconfig: &Kubeconfig, allow_insecure: bool) -> Result<(), ConnectError> {
    let refuse =
        |what: &str, instead: &str| Err(ConnectError::RefusedKubeconfig(format!("{what} is not allowed; {instead}")));
    for user in kubeconfig.auth_infos.iter().filter_map(|user| user.auth_info.as_ref()) {
        if user.exec.is_some() {
            return refuse("exec", "use a token or an embedded client certificate");
        }
        if user.auth_provider.is_some() {
            return refuse("auth-provider", "use a token or an embedded client certificate");
        }
        for (path, what, instead) in [
            (&user.client_certificate, "client-certificate (a file path)", "embed it as client-certificate-data"),
            (&user.client_key, "client-key (a file path)", "embed it as client-key-data"),
            (&user.token_file, "tokenFile", "embed the token"),
        ] {
            if path.is_some() {
                return refuse(what, instead);
            }
        }
    }
    for cluster in kubeconfig.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref()) {
        if cluster.certificate_authority.is_some() {
            return refuse("certificate-authority (a file path)", "embed it as certificate-authority-data");
        }
        if cluster.insecure_skip_tls_verify == Some(true) && !allow_insecure {
            return refuse("insecure-skip-tls-verify", "embed the CA, or set insecureSkipTLSVerify on the binding");
        }
        if cluster.proxy_url.is_some() {
            return refuse("proxy-url", "name the API server itself");
        }
        if !cluster.server.as_deref().unwrap_or_default().starts_with("https://") && !allow_insecure {
            return refuse("a server without https", "credentials would be sent unencrypted");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
