//! That tokens are asked for, kept and refreshed as the virtual API server says, and never printed.

use super::*;

const BEARER: Bearer<'static> = Bearer { namespace: "shop", name: "web", uid: "u-1" };

fn ask(key: &str, audience: Option<&str>, seconds: i64) -> TokenAsk {
    TokenAsk { key: key.into(), audience: audience.map(Into::into), expiration_seconds: seconds }
}

fn answer(token: &str, created: Option<&str>, expires: &str) -> String {
    json!({"metadata": {"creationTimestamp": created}, "status": {"token": token, "expirationTimestamp": expires}})
        .to_string()
}

fn marks() -> Marks<'static> {
    Marks { labels: vec![("l", "1".to_owned())], annotations: vec![("a", "2".to_owned())], salt: "s" }
}

#[test]
fn a_request_is_bound_to_the_pod_and_names_an_audience_only_if_one_is_asked_for() {
    let request = render_request(&ask("k", None, 3600), &BEARER);
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u-1"});
    assert_eq!(request["spec"], json!({"expirationSeconds": 3600, "boundObjectRef": bound}));
    assert_eq!(
        (&request["kind"], &request["apiVersion"]),
        (&json!("TokenRequest"), &json!("authentication.k8s.io/v1"))
    );
    assert_eq!(render_request(&ask("k", Some("vault"), 600), &BEARER)["spec"]["audiences"], json!(["vault"]));
}

#[test]
fn the_secret_holds_every_token_and_says_when_the_first_expires_and_when_to_refresh() {
    let long = answer("t-long", Some("2026-01-05T00:00:00Z"), "2026-01-05T10:00:00Z");
    // Shorter than asked for: the server decides.
    let short = answer("t-short", Some("2026-01-05T00:00:00Z"), "2026-01-05T00:10:00Z");
    let grants = [
        read_grant(&ask("api.0", None, 36_000), long.as_bytes()).unwrap(),
        read_grant(&ask("vault.1", Some("vault"), 3600), short.as_bytes()).unwrap(),
    ];
    let secret = render_secret(&grants, &BEARER, "web-token-x", "mount", &marks());
    assert_eq!(
        secret,
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "web-token-x", "namespace": "mount", "labels": {"l": "1"},
                "annotations": {
                    "a": "2", "tapestry.io/virtual-pod-namespace": "shop", "tapestry.io/virtual-pod-name": "web",
                    "tapestry.io/virtual-pod-uid": "u-1",
                    "tapestry.io/token-expires": "2026-01-05T00:10:00Z", "tapestry.io/token-refresh": "2026-01-05T00:08:00Z",
                },
            },
            "stringData": {"api.0": "t-long", "vault.1": "t-short"},
        })
    );
    let patch = render_refresh(&grants, &BEARER, &marks());
    assert_eq!(
        (&patch["stringData"], &patch["metadata"]["labels"]),
        (&secret["stringData"], &secret["metadata"]["labels"])
    );
    assert!(patch.get("type").is_none() && patch["metadata"].get("name").is_none());
}

#[test]
fn without_a_time_of_creation_a_token_lives_as_long_as_was_asked_for() {
    let grant = read_grant(&ask("k", None, 1000), answer("t", None, "2026-01-05T01:00:00Z").as_bytes()).unwrap();
    assert_eq!(seconds(grant.refresh_at()), "2026-01-05T00:56:40Z");
    let odd = answer("t", Some("2026-01-05T02:00:00Z"), "2026-01-05T01:00:00Z");
    let grant = read_grant(&ask("k", None, i64::MAX), odd.as_bytes()).unwrap();
    assert!(grant.refresh_at() < grant.from, "expired when it was issued: refresh at once");
}

#[test]
fn an_answer_without_a_token_is_refused_and_a_token_is_never_printed() {
    for bad in
        ["", "{}", r#"{"status":{"token":"t"}}"#, &answer("", None, "2026-01-05T01:00:00Z"), &answer("t", None, "x")]
    {
        assert_eq!(read_grant(&ask("k", None, 600), bad.as_bytes()), Err(NoToken), "{bad}");
    }
    let grant = read_grant(&ask("k", None, 600), answer("hush", None, "2026-01-05T01:00:00Z").as_bytes()).unwrap();
    assert_eq!(format!("{grant:?}"), "token k from 2026-01-05T00:50:00Z until 2026-01-05T01:00:00Z");
}

#[test]
fn a_token_says_itself_when_it_has_to_be_renewed_and_what_is_no_token_says_nothing() {
    // From 2026-01-05T00:00:00Z, for an hour.
    let (from, until) = (1_767_571_200, 1_767_574_800);
    let held = |claims: Value| encode(&format!("e30.{}.sig-_", encode(&claims.to_string())));
    let renewed = |claims: Value| renew_by(&held(claims)).map(seconds);
    assert_eq!(renewed(json!({"iat": from, "exp": until})).as_deref(), Some("2026-01-05T00:48:00Z"));
    let extended =
        json!({"iat": from, "exp": from + 31_536_000, "kubernetes.io": {"pod": {"name": "web"}, "warnafter": until}});
    assert_eq!(renewed(extended).as_deref(), Some("2026-01-05T00:48:00Z"));
    for other in
        [json!({}), json!({"iat": from}), json!({"iat": "x", "exp": until}), json!({"iat": i64::MAX, "exp": 1})]
    {
        assert_eq!(renewed(other.clone()), None, "{other}");
    }
    for other in ["", "t", "!!!!", "aHVzaA==", "YS5iLmM=", "Li4="] {
        assert_eq!(renew_by(other), None, "{other}");
    }
}

/// Base64 without padding.
fn encode(text: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut encoded = String::new();
    for group in text.as_bytes().chunks(3) {
        let bits = group.iter().fold(0usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            encoded.push(char::from(ALPHABET[bits >> (18 - 6 * place) & 63]));
        }
    }
    encoded
}
