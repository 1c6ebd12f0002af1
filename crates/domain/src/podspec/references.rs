//! Every place where a pod names a ConfigMap, a Secret, a claim or a token gets the name that the copy has in the mount namespace.
//! It must not leave out a place that [`super::needs`] reads: a name left as it was would read another user's object.

use serde_json::{Map, Value, json};

use super::downward::items;
use super::needs::ephemeral_claim;
use super::{CONTAINERS, Frame};
use crate::dependents::DependentKind::{self, ConfigMap, Secret};

/// Rewrites all references of the spec of the virtual pod of this name.
pub(super) fn rewrite(spec: &mut Map<String, Value>, vpod: &str, frame: &Frame<'_>) {
    for (position, volume) in items(spec.get_mut("volumes")).enumerate() {
        rewrite_claim(volume, vpod, frame);
        rewrite_volume(position, volume, frame);
    }
    for list in CONTAINERS {
        for container in items(spec.get_mut(list)) {
            rewrite_container(container, frame);
        }
    }
    for secret in items(spec.get_mut("imagePullSecrets")) {
        rename(Some(secret), "name", Secret, frame);
    }
}

fn rewrite_volume(position: usize, volume: &mut Value, frame: &Frame<'_>) {
    rename(volume.get_mut("configMap"), "name", ConfigMap, frame);
    rename(volume.get_mut("secret"), "secretName", Secret, frame);
    rename(volume.get_mut("azureFile"), "secretName", Secret, frame);
    rename(volume.get_mut("csi").and_then(|csi| csi.get_mut("nodePublishSecretRef")), "name", Secret, frame);
    // Drivers take their credential from `secretRef`; also one that is newer than this code must not read another user's.
    for driver in volume.as_object_mut().into_iter().flat_map(Map::values_mut) {
        rename(driver.get_mut("secretRef"), "name", Secret, frame);
    }
    let sources = volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"));
    for (index, source) in items(sources).enumerate() {
        rename(source.get_mut("configMap"), "name", ConfigMap, frame);
        rename(source.get_mut("secret"), "name", Secret, frame);
        project_token(source, &token_key(position, index), frame.token_secret);
    }
}

/// A claim that Kubernetes makes for one pod is made in the virtual cluster; the physical one has its copy.
fn rewrite_claim(volume: &mut Value, vpod: &str, frame: &Frame<'_>) {
    let name = volume.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(volume) = volume.as_object_mut() else { return };
    let own = volume.remove("ephemeral").filter(|own| !own.is_null());
    if let Some(claim) = volume.get_mut("persistentVolumeClaim").filter(|claim| !claim.is_null()) {
        let virtual_name = claim.get("claimName").and_then(Value::as_str).unwrap_or_default();
        claim["claimName"] = (frame.claim_name)(virtual_name).into();
    } else if let Some(own) = own {
        let mut claim = json!({ "claimName": (frame.claim_name)(&ephemeral_claim(vpod, &name)) });
        if let Some(read_only) = own.get("readOnly").filter(|read_only| read_only.is_boolean()) {
            claim["readOnly"] = read_only.clone();
        }
        volume.insert("persistentVolumeClaim".into(), claim);
    }
}

fn rewrite_container(container: &mut Value, frame: &Frame<'_>) {
    for env in items(container.get_mut("env")) {
        let Some(from) = env.get_mut("valueFrom") else { continue };
        rename(from.get_mut("configMapKeyRef"), "name", ConfigMap, frame);
        rename(from.get_mut("secretKeyRef"), "name", Secret, frame);
    }
    for from in items(container.get_mut("envFrom")) {
        rename(from.get_mut("configMapRef"), "name", ConfigMap, frame);
        rename(from.get_mut("secretRef"), "name", Secret, frame);
    }
}

/// An empty name refers to nothing, on either side.
fn rename(reference: Option<&mut Value>, field: &str, kind: DependentKind, frame: &Frame<'_>) {
    let Some(name) = reference.and_then(|reference| reference.get_mut(field)) else { return };
    if let Some(virtual_name) = name.as_str().filter(|name| !name.is_empty()) {
        *name = (frame.dependent_name)(kind, virtual_name).into();
    }
}

/// A kubelet would ask the physical cluster for a token; the virtual one is in a Secret.
fn project_token(source: &mut Value, key: &str, secret: &str) {
    let Some(source) = source.as_object_mut() else { return };
    let Some(token) = source.remove("serviceAccountToken").filter(|token| !token.is_null()) else { return };
    source.insert("secret".into(), json!({ "name": secret, "items": [{ "key": key, "path": token["path"] }] }));
}

/// Under which key the token of a projected volume's source is in the Secret. By position: the name of the injected volume differs
/// from pod to pod, and pods of one template shall share what is kept of them.
pub(super) fn token_key(volume: usize, source: usize) -> String {
    format!("{volume}.{source}")
}
