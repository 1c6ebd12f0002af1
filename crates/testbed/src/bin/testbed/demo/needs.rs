//! What the pods of the demo's Deployment need: a ConfigMap, a Secret and tokens, and the copies of these in the physical cluster.
//! Must not print a value of a Secret, and must not trust a copy that does not point back.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::Pod;

use super::stage::{MOUNT, Stage};
use super::text;

/// Name of the ConfigMap, and the key that changes while pods run.
pub(super) const GREETING: (&str, &str) = ("greeting", "text");
/// What it says first, and later.
pub(super) const WORDS: [&str; 2] = ["good morning", "good evening"];
/// Name of the Secret.
const LOGIN: &str = "login";

/// Both sides at one moment.
pub(super) struct View {
    /// The ConfigMap and the Secret of the virtual cluster.
    sources: Vec<Value>,
    /// Everything of ours in the mount namespace, by name.
    copies: BTreeMap<String, Value>,
    vpods: Vec<Value>,
    /// Physical pods that carry our origin, by name.
    ppods: BTreeMap<String, Value>,
}

/// The ConfigMap and the Secret.
pub(super) fn objects(namespace: &str) -> [Value; 2] {
    let object = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let (mut greeting, mut login) = (object("ConfigMap", GREETING.0), object("Secret", LOGIN));
    greeting["data"] = json!({ GREETING.1: WORDS[0] });
    login["stringData"] = json!({ "user": "demo", "password": format!("{:016x}", fastrand::u64(..)) });
    [greeting, login]
}

/// A pod that mounts the ConfigMap and has the Secret in its environment. The virtual cluster adds the volume with a token.
pub(super) fn equip(pod: Pod) -> Pod {
    let volume = json!({ "name": "greeting", "configMap": { "name": GREETING.0 } });
    let mount = json!({ "name": "greeting", "mountPath": "/etc/greeting" });
    pod.with("/spec/volumes", json!([volume]))
        .with("/spec/containers/0/volumeMounts", json!([mount]))
        .with("/spec/containers/0/envFrom", json!([{ "secretRef": { "name": LOGIN } }]))
}

/// Reads both clusters. `origin` marks the copies.
pub(super) async fn look(stage: &Stage, namespace: &str, origin: &str) -> Result<View> {
    let ours = format!("{}={origin}", keys::ORIGIN);
    let (virtual_side, physical_side) = (&stage.virtual_side, &stage.physical_side);
    let (greeting, login) = (format!("{namespace}/{}", GREETING.0), format!("{namespace}/{LOGIN}"));
    let (greeting, login, vpods, config_maps, secrets, ppods) = tokio::try_join!(
        virtual_side.get("v1/ConfigMap", &greeting),
        virtual_side.get("v1/Secret", &login),
        virtual_side.list("v1/Pod", namespace),
        physical_side.list_where("v1/ConfigMap", MOUNT, &ours),
        physical_side.list_where("v1/Secret", MOUNT, &ours),
        physical_side.list_where("v1/Pod", MOUNT, &ours),
    )?;
    // Items of a list do not say their kind.
    let typed = |kind: &'static str| {
        move |mut object: Value| {
            object["kind"] = kind.into();
            object
        }
    };
    let copies = config_maps.into_iter().map(typed("ConfigMap")).chain(secrets.into_iter().map(typed("Secret")));
    let sources = [greeting.map(typed("ConfigMap")), login.map(typed("Secret"))];
    Ok(View { sources: sources.into_iter().flatten().collect(), copies: by_name(copies), vpods, ppods: by_name(ppods) })
}

impl View {
    /// All faults while `pods` pods run, each with what was expected and seen.
    pub(super) fn faults(&self, pods: usize) -> Vec<String> {
        let mut faults: Vec<String> = self.sources.iter().filter_map(|source| self.fault(source)).collect();
        if self.sources.len() != 2 {
            faults
                .push(format!("expected a ConfigMap and a Secret in the virtual cluster, saw {}", self.sources.len()));
        }
        let tokens = self.token_secrets().count();
        if tokens != pods {
            faults.push(format!("expected a Secret with a token for each of {pods} pods, saw {tokens}"));
        }
        faults.extend(self.vpods.iter().filter_map(|vpod| self.pod_fault(vpod)));
        faults
    }

    /// How many copies of ConfigMaps and Secrets there are, those with tokens included.
    pub(super) fn copies(&self) -> usize {
        self.copies.len()
    }

    /// The UIDs of the physical pods, in order: a pod that was replaced has another.
    pub(super) fn pod_uids(&self) -> Vec<&str> {
        let mut uids: Vec<&str> = self.ppods.values().map(|ppod| text(&ppod["metadata"]["uid"])).collect();
        uids.sort_unstable();
        uids
    }

    /// What the copy of the ConfigMap says.
    pub(super) fn words(&self) -> &str {
        let greeting = self.sources.iter().find(|source| source["kind"] == "ConfigMap");
        greeting.and_then(|greeting| self.copy(greeting)).map_or("", |copy| text(&copy["data"][GREETING.1]))
    }

    /// The copies as a table. Of a Secret it has the keys and lengths of its values.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let heading = ["IN VIRTUAL", "COPY IN PHYSICAL", "HOLDS", "USED BY"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for source in &self.sources {
            let (kind, name) = (text(&source["kind"]), text(&source["metadata"]["name"]));
            let copy = self.copy(source);
            let copied = copy.map_or("-", |copy| text(&copy["metadata"]["name"]));
            let users = self.users(copied);
            rows.push(
                [format!("{kind} {name}"), copied.to_owned(), copy.map_or_else(String::new, holds), users].to_vec(),
            );
        }
        if let Some((name, secret)) = self.token_secrets().next() {
            let bearer = text(&secret["metadata"]["annotations"][keys::VIRTUAL_POD_NAME]);
            rows.push([format!("token of pod {bearer}"), name.clone(), holds(secret), self.users(name)].to_vec());
        }
        let more = self.token_secrets().count().saturating_sub(1);
        if more > 0 {
            rows.push(vec![format!("... and those of {more} more pods")]);
        }
        rows
    }

    /// Lets the virtual API server say whose the token of the first pod is.
    pub(super) async fn bearer(&self, stage: &Stage) -> Result<String> {
        let (_, secret) = self.token_secrets().next().context("expected a Secret with a token, saw none")?;
        let token =
            secret["data"].as_object().and_then(|data| data.values().next()).context("no token in the Secret")?;
        let ByteString(token) = serde_json::from_value(token.clone()).context("reading a token")?;
        let token = String::from_utf8(token).context("reading a token")?;
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": { "name": "" }, "spec": { "token": token },
        });
        let review = stage.virtual_side.create(&review).await.context("asking the virtual API server about a token")?;
        let status = &review["status"];
        ensure!(status["authenticated"] == true, "expected a token of the virtual cluster: {}", status["error"]);
        let bound = &status["user"]["extra"]["authentication.kubernetes.io/pod-uid"][0];
        let bearer = &secret["metadata"]["annotations"][keys::VIRTUAL_POD_UID];
        ensure!(bound == bearer, "expected a token that is bound to pod {bearer}, saw {bound}");
        Ok(text(&status["user"]["username"]).to_owned())
    }

    fn copy(&self, source: &Value) -> Option<&Value> {
        let back = |copy: &&Value| {
            let back = &copy["metadata"]["annotations"];
            let pairs =
                [("namespace", keys::VIRTUAL_NAMESPACE), ("name", keys::VIRTUAL_NAME), ("uid", keys::VIRTUAL_UID)];
            copy["kind"] == source["kind"] && pairs.iter().all(|(field, key)| back[key] == source["metadata"][field])
        };
        self.copies.values().find(back)
    }

    fn fault(&self, source: &Value) -> Option<String> {
        let what = format!("{} {}", text(&source["kind"]), text(&source["metadata"]["name"]));
        let Some(copy) = self.copy(source) else {
            return Some(format!("{what}: expected a copy in {MOUNT}, saw none"));
        };
        // The values are not part of the message.
        (copy["data"] != source["data"]).then(|| format!("{what}: expected the same values in its copy, saw others"))
    }

    fn pod_fault(&self, vpod: &Value) -> Option<String> {
        let name = text(&vpod["metadata"]["name"]);
        let Some(ppod) = self.ppods.get(text(&vpod["metadata"]["annotations"][keys::PHYSICAL_POD_NAME])) else {
            return Some(format!("{name}: expected a physical pod, saw none"));
        };
        let named = names_of(ppod);
        let lacks = self.sources.iter().find(|source| {
            let copy = self.copy(source).map(|copy| text(&copy["metadata"]["name"]));
            !copy.is_some_and(|copy| named.contains(&copy))
        });
        if let Some(source) = lacks {
            return Some(format!("{name}: expected that its copy names the copy of {}, saw {named:?}", source["kind"]));
        }
        let own = |secret: &&Value| secret["metadata"]["annotations"][keys::VIRTUAL_POD_UID] == vpod["metadata"]["uid"];
        let tokens = self.token_secrets().find(|(_, secret)| own(secret)).map(|(name, _)| name.as_str());
        let mounted = tokens.is_some_and(|tokens| named.contains(&tokens));
        (!mounted).then(|| format!("{name}: expected that its copy mounts its own token, saw {named:?}"))
    }

    fn token_secrets(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.copies.iter().filter(|(_, copy)| copy["metadata"]["annotations"][keys::VIRTUAL_POD_UID].is_string())
    }

    fn users(&self, copy: &str) -> String {
        match self.ppods.values().filter(|ppod| names_of(ppod).contains(&copy)).count() {
            1 => "1 pod".to_owned(),
            pods => format!("{pods} pods"),
        }
    }
}

fn by_name(objects: impl IntoIterator<Item = Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|object| (text(&object["metadata"]["name"]).to_owned(), object)).collect()
}

/// The ConfigMaps and Secrets that a pod names in the places that this demo uses.
fn names_of(pod: &Value) -> Vec<&str> {
    let items = |list: &'static str, of: &'static str| {
        pod["spec"][list].as_array().into_iter().flatten().map(move |item| &item[of])
    };
    let mut names: Vec<&str> = items("volumes", "configMap").map(|map| text(&map["name"])).collect();
    for sources in items("volumes", "projected").filter_map(|projected| projected["sources"].as_array()) {
        names.extend(sources.iter().map(|source| text(&source["secret"]["name"])));
    }
    for from in items("containers", "envFrom").filter_map(Value::as_array) {
        names.extend(from.iter().map(|from| text(&from["secretRef"]["name"])));
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Keys and values of a ConfigMap; keys and lengths of a Secret.
fn holds(object: &Value) -> String {
    let show = |(key, value): (&String, &Value)| {
        if object["kind"] != "Secret" {
            return format!("{key}: {value}");
        }
        let length = serde_json::from_value(value.clone()).map_or(0, |ByteString(bytes)| bytes.len());
        format!("{key}: {length} bytes")
    };
    let values = object["data"].as_object();
    values.map(|values| values.iter().map(show).collect::<Vec<_>>().join(", ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tapestry_testbed::builders::pod;

    use super::*;

    fn copy(kind: &str, name: &str, data: &Value) -> Value {
        let back = json!({ keys::VIRTUAL_NAMESPACE: "demo", keys::VIRTUAL_NAME: name, keys::VIRTUAL_UID: name });
        json!({ "kind": kind, "metadata": { "name": format!("{name}-1"), "annotations": back }, "data": data })
    }

    fn source(kind: &str, name: &str, data: &Value) -> Value {
        json!({ "kind": kind, "metadata": { "name": name, "namespace": "demo", "uid": name }, "data": data })
    }

    /// One pod with everything that it needs; the copies hold `words` and `login`.
    fn view(words: &str, login: &Value) -> View {
        let sources = [
            ("ConfigMap", GREETING.0, json!({ GREETING.1: WORDS[0] })),
            ("Secret", LOGIN, json!({ "password": "aHVzaA==" })),
        ];
        let token = json!({
            "kind": "Secret", "metadata": { "name": "web-token-1", "annotations": { keys::VIRTUAL_POD_UID: "v" } }, "data": { "t": "aHVzaA==" },
        });
        let copies =
            [copy("ConfigMap", GREETING.0, &json!({ GREETING.1: words })), copy("Secret", LOGIN, login), token];
        let vpod = pod("web").annotation(keys::PHYSICAL_POD_NAME, "web-1").with("/metadata/uid", "v").build();
        let mut ppod = equip(pod("web-1")).build();
        ppod["spec"]["volumes"] = json!([
            { "name": "greeting", "configMap": { "name": "greeting-1" } },
            { "name": "token", "projected": { "sources": [{ "secret": { "name": "web-token-1" } }] } },
        ]);
        ppod["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"] = json!("login-1");
        View {
            sources: sources.map(|(kind, name, data)| source(kind, name, &data)).to_vec(),
            copies: by_name(copies),
            vpods: vec![vpod],
            ppods: by_name([ppod]),
        }
    }

    #[test]
    fn a_pod_whose_copy_names_the_copies_of_all_it_needs_has_no_fault() {
        assert_eq!(view(WORDS[0], &json!({ "password": "aHVzaA==" })).faults(1), Vec::<String>::new());
    }

    #[test]
    fn a_copy_with_another_value_is_a_fault_that_does_not_say_the_value() {
        let faults = view(WORDS[1], &json!({ "password": "c2VjcmV0" })).faults(1);
        assert_eq!(
            faults,
            ["ConfigMap greeting", "Secret login"]
                .map(|what| format!("{what}: expected the same values in its copy, saw others"))
        );
    }

    #[test]
    fn a_missing_token_is_a_fault() {
        let mut view = view(WORDS[0], &json!({ "password": "aHVzaA==" }));
        view.copies.remove("web-token-1");
        let faults = view.faults(1);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[1].contains("mounts its own token"), "{faults:?}");
    }

    #[test]
    fn the_table_has_the_lengths_of_secret_values_and_not_the_values() {
        let table = view(WORDS[0], &json!({ "password": "aHVzaA==" })).table();
        assert_eq!(table[2], ["Secret login", "login-1", "password: 4 bytes", "1 pod"]);
        assert!(!format!("{table:?}").contains("aHVz"));
    }
}
