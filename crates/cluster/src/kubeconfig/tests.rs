//! How kubeconfigs from users, scripts and attackers are checked.

use futures::FutureExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Cluster;

const SECRET: Trust = Trust::Secret { allow_insecure: false };

fn kubeconfig(user: &Value, cluster: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "clusters": [{"name": "c", "cluster": cluster}],
    })
    .to_string()
}

/// Builds the client stack and hands it one request, which is never polled: nothing is sent.
async fn try_out(text: &str, trust: Trust) -> Result<(), ConnectError> {
    let cluster = Cluster::connect("x", text, trust, "test").await?;
    let mut client = cluster.client();
    let request = http::Request::get("/api/v1/namespaces/kube-system?a=b").body(kube::client::Body::empty());
    let _ = tower::ServiceExt::ready(&mut client).now_or_never();
    drop(tower::Service::call(&mut client, request.unwrap()));
    Ok(())
}

async fn fault(user: Value, cluster: Value) -> Result<(), BadValue> {
    match try_out(&kubeconfig(&user, &cluster), Trust::Operator).await {
        Ok(()) => Ok(()),
        Err(ConnectError::InvalidKubeconfig(bad)) => Err(bad),
        Err(other) => panic!("{other}"),
    }
}

fn https() -> Value {
    json!({"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": true})
}

/// A certificate and its key, as kubeconfigs carry them.
fn pair() -> [String; 2] {
    let signed = rcgen::generate_simple_self_signed(["host".to_owned()]).unwrap();
    [signed.cert.pem(), signed.signing_key.serialize_pem()]
        .map(|pem| json!(ByteString(pem.into_bytes())).as_str().unwrap().to_owned())
}

#[tokio::test]
async fn white_space_around_a_value_is_harmless() {
    let [certificate, key] = pair();
    let broken = |text: &str| format!("{}\n{}\n", &text[..20], &text[20..]);
    for user in [
        json!({"token": "abc.def-ghi\n"}),
        json!({"token": " \t abc \r\n"}),
        json!({"token": "\n"}),
        json!({"username": "me\n", "password": "p w\n"}),
        json!({"as": "a-user\n"}),
        json!({"client-certificate-data": broken(&certificate), "client-key-data": broken(&key)}),
    ] {
        assert_eq!(fault(user.clone(), https()).await, Ok(()), "{user}");
    }
    let ca = json!({"server": " https://host:6443/prefix/ \n", "tls-server-name": "host\n", "certificate-authority-data": broken(&certificate)});
    assert_eq!(fault(json!({}), ca).await, Ok(()));
}

#[tokio::test]
async fn every_value_that_no_client_can_be_built_from_is_refused_by_its_name() {
    let [certificate, key] = pair();
    let (text, none) = ("aGVsbG8K", json!({}));
    for (user, field, fault_of) in [
        (json!({"token": "a\nb"}), "token", Fault::NotAToken),
        (json!({"token": "a b"}), "token", Fault::NotAToken),
        (json!({"token": "ä"}), "token", Fault::NotAToken),
        (json!({"username": "a:b", "password": "c"}), "username", Fault::Colon),
        (json!({"username": "a\nb", "password": "c"}), "username", Fault::NotAHeader),
        (json!({"as": "a\nb"}), "as", Fault::NotAHeader),
        (json!({"as-uid": "a\0b"}), "as-uid", Fault::NotAHeader),
        (json!({"as-groups": ["a", "\n"]}), "as-groups", Fault::NotAHeader),
        (json!({"as-user-extra": {"k": ["\r"]}}), "as-user-extra", Fault::NotAHeader),
        (json!({"client-certificate-data": "?", "client-key-data": key}), "client-certificate-data", Fault::NotBase64),
        (
            json!({"client-certificate-data": text, "client-key-data": key}),
            "client-certificate-data",
            Fault::NotACertificate,
        ),
        (json!({"client-certificate-data": certificate, "client-key-data": text}), "client-key-data", Fault::NotAKey),
        (json!({"client-certificate-data": certificate}), "client-key-data", Fault::Missing),
        (json!({"client-key-data": key}), "client-certificate-data", Fault::Missing),
    ] {
        assert_eq!(fault(user.clone(), https()).await, Err(fault_of.of(field)), "{user}");
    }
    for (cluster, field, fault_of) in [
        (json!({"server": "host:6443"}), "server", Fault::NotAUrl),
        (json!({"server": "/path"}), "server", Fault::NotAUrl),
        (json!({"server": "*"}), "server", Fault::NotAUrl),
        (json!({"server": "ftp://host"}), "server", Fault::NotAUrl),
        (json!({"server": "https://host:port"}), "server", Fault::NotAUrl),
        (json!({"server": "https://host:99999"}), "server", Fault::NotAUrl),
        (json!({"server": format!("https://host/{}", "a".repeat(65_400))}), "server", Fault::NotAUrl),
        (json!({"server": "https://me:secret@host"}), "server", Fault::Userinfo),
        (json!({"server": "https://-host-"}), "server", Fault::NotAHost),
        (json!({"server": "https://host", "tls-server-name": "no host"}), "tls-server-name", Fault::NotAHost),
        (
            json!({"server": "https://host", "certificate-authority-data": text}),
            "certificate-authority-data",
            Fault::NotACertificate,
        ),
    ] {
        assert_eq!(fault(none.clone(), cluster.clone()).await, Err(fault_of.of(field)), "{cluster}");
    }
}

/// `hunter2` in every field.
#[tokio::test]
async fn law_10_no_value_is_ever_quoted() {
    let bad = "hunter2 \n\u{1}hunter2";
    let mut texts = vec![format!("users: [{{user: {{token: {bad:?}}}}}"), bad.to_owned(), format!("- {bad:?}")];
    for field in ["token", "username", "password", "as", "as-uid", "client-certificate-data", "client-key-data", "exec"]
    {
        texts.push(kubeconfig(&json!({field: bad}), &https()));
    }
    for field in ["server", "tls-server-name", "certificate-authority-data", "proxy-url", "insecure-skip-tls-verify"] {
        let mut cluster = https();
        cluster[field] = json!(bad);
        texts.push(kubeconfig(&json!({}), &cluster));
    }
    texts.push(json!({"current-context": bad}).to_string());
    let context = json!([{"name": "c", "context": {"cluster": bad, "user": bad}}]);
    texts.push(json!({"current-context": "c", "contexts": context}).to_string());
    for text in texts {
        for trust in [SECRET, Trust::Operator] {
            if let Err(error) = try_out(&text, trust).await {
                assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_operators_proxy_is_refused_by_name_where_it_would_be_used() {
    let mut cluster = https();
    cluster["proxy-url"] = json!("http://p:3128");
    let text = kubeconfig(&json!({"token": "t"}), &cluster);
    let said = try_out(&text, Trust::Operator).await.unwrap_err().to_string();
    assert!(said.contains("proxy-url is not supported") && !said.contains("3128"), "{said}");
    cluster["proxy-url"] = json!("");
    try_out(&kubeconfig(&json!({"token": "t"}), &cluster), Trust::Operator).await.unwrap();
    // The proxy of a cluster that is not used is ignored.
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["clusters"][0]["name"] = json!("elsewhere");
    let fine: Value = serde_json::from_str(&kubeconfig(&json!({"token": "t"}), &https())).unwrap();
    other["clusters"].as_array_mut().unwrap().push(fine["clusters"][0].clone());
    try_out(&other.to_string(), Trust::Operator).await.unwrap();
}

fn check_danger(user: &str, cluster: &str, allow_insecure: bool) -> Result<(), String> {
    let text = kubeconfig(&serde_json::from_str(user).unwrap(), &serde_json::from_str(cluster).unwrap());
    refuse_dangerous(&Kubeconfig::from_yaml(&text).unwrap(), allow_insecure).map_err(|error| error.to_string())
}

#[test]
fn law_10_a_kubeconfig_from_a_secret_cannot_run_programs_or_read_files() {
    let https = r#"{"server":"https://h"}"#;
    for (user, what) in [
        (r#"{"exec":{"command":"sh","apiVersion":"client.authentication.k8s.io/v1"}}"#, "exec"),
        (r#"{"auth-provider":{"name":"gcp","config":{}}}"#, "auth-provider"),
        (r#"{"client-certificate":"/etc/passwd"}"#, "client-certificate"),
        (r#"{"client-key":"/etc/passwd"}"#, "client-key"),
        (r#"{"tokenFile":"/etc/passwd"}"#, "tokenFile"),
    ] {
        let said = check_danger(user, https, true).unwrap_err();
        assert!(said.contains(what), "{said}");
    }
    assert!(check_danger("{}", r#"{"server":"https://h","certificate-authority":"/x"}"#, true).is_err());
    assert!(check_danger("{}", r#"{"server":"https://h","proxy-url":"http://p"}"#, true).is_err());
    assert_eq!(check_danger(r#"{"token":"t"}"#, https, false), Ok(()));
}

#[test]
fn law_10_an_unverified_peer_needs_the_bindings_consent() {
    for insecure in [r#"{"server":"https://h","insecure-skip-tls-verify":true}"#, r#"{"server":"http://h"}"#] {
        assert!(check_danger("{}", insecure, false).is_err());
        assert_eq!(check_danger("{}", insecure, true), Ok(()));
    }
}

/// Candidates for a value: mostly text that is nearly right.
fn hostile() -> impl Strategy<Value = Value> {
    let words = [
        "",
        "\n",
        "a\n",
        "\0",
        "abc",
        "https://h",
        "http://h:1/p",
        "https://[::1]:443",
        "*",
        "//",
        "h:1",
        "aGVsbG8K",
        "https://h:0/?q#f",
        "127.0.0.1",
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(Value::from),
        3 => any::<String>().prop_map(Value::from),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned().into()),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!([])),
        1 => Just(json!({"a": ["b"]})),
        1 => Just(Value::Bool(true)),
    ]
}

fn fields(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::collection::vec((proptest::sample::select(names.to_vec()), hostile()), 0..5)
        .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

// No exec, auth-provider or file path: with the operator's trust they would run programs and read files that are drawn at random.
const USER: &[&str] = &[
    "token",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
    "client-certificate-data",
    "client-key-data",
];
const CLUSTER: &[&str] = &[
    "server",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "tls-server-name",
    "disable-compression",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_kubeconfig_path_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in any::<String>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for text in [String::from_utf8_lossy(&bytes).as_ref(), &text] {
            for trust in [SECRET, Trust::Secret { allow_insecure: true }, Trust::Operator] {
                let _ = runtime.block_on(try_out(text, trust));
            }
        }
    }

    #[test]
    fn no_value_of_a_kubeconfig_makes_the_client_panic(user in fields(USER), cluster in fields(CLUSTER), named in hostile(), whole in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut text: Value = serde_json::from_str(&kubeconfig(&user, &cluster)).unwrap();
        if !whole {
            text["current-context"] = named;
        }
        for trust in [SECRET, Trust::Secret { allow_insecure: true }, Trust::Operator] {
            let _ = runtime.block_on(try_out(&text.to_string(), trust));
        }
    }
}

#[tokio::test]
async fn files_that_do_not_exist_are_skipped_among_those_that_kubeconfig_names() {
    let folder = std::env::temp_dir().join(format!("tapestry-kubeconfigs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [good, other, missing] = ["good", "other", "missing"].map(|name| folder.join(name));
    std::fs::write(&good, kubeconfig(&json!({}), &json!({"server": "https://good:6443"}))).unwrap();
    std::fs::write(&other, kubeconfig(&json!({}), &json!({"server": "https://other:6443"}))).unwrap();
    let read = |paths: &[&std::path::PathBuf]| read_list(&std::env::join_paths(paths).unwrap());
    for list in [vec![&missing, &good], vec![&good, &missing], vec![&missing, &good, &other]] {
        let config = load_parsed(read(&list).unwrap(), Trust::Operator, None).await.unwrap();
        assert_eq!(config.cluster_url.host(), Some("good"), "{list:?}");
    }
    let none = read(&[&missing]).unwrap_err().to_string();
    assert!(none.contains("exists") && none.contains("missing"), "{none}");
    // A file that exists but cannot be read is an error, not skipped.
    let unreadable = read(&[&folder, &good]).unwrap_err().to_string();
    assert!(unreadable.contains("Is a directory"), "{unreadable}");
    std::fs::remove_dir_all(&folder).unwrap();
}
