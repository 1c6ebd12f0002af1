//! Tests that the table says what the transformation does: each field of each type is tried.
//! They must not list fields themselves: the table does.

use serde_json::{Map, json};

use super::*;
use crate::podspec::tests::{frame, reaching, vpod};
use crate::podspec::{Frame, render_copy, render_ephemeral_containers};

/// A spec that has this at a path of the table: `[]` is a list of one.
fn spec_with(path: &str, leaf: Value) -> Value {
    let steps = path.split('.').filter(|step| !step.is_empty());
    steps.rev().fold(leaf, |inner, step| match step.strip_suffix("[]") {
        Some(list) => json!({ list: [inner] }),
        None => json!({ step: inner }),
    })
}

/// What is at a path; of a list the last, because ours come first.
fn at<'v>(spec: &'v Value, path: &str) -> &'v Value {
    path.split('.').filter(|step| !step.is_empty()).fold(spec, |value, step| match step.strip_suffix("[]") {
        Some(list) => value[list].as_array().and_then(|list| list.last()).unwrap_or(&Value::Null),
        None => &value[step],
    })
}

/// The spec that the copy of a pod gets, also by way of the subresource.
fn copied(spec: &Value, frame: &Frame<'_>) -> Value {
    let pod = vpod("web", spec);
    let mut copy = render_copy(&pod, frame).unwrap()["spec"].take();
    copy["ephemeralContainers"] = render_ephemeral_containers(&pod, frame).unwrap();
    copy
}

/// A value that fits the field and is found again.
fn marker(field: &str) -> Value {
    match field {
        "optional" => json!(true),
        "name" => json!("kept"),
        _ => json!({ "kept": field, "deep": [1e-7, null, { "a": [] }] }),
    }
}

fn names(shape: &Shape, fate: Fate) -> Vec<&'static str> {
    shape.fields().filter(|field| field.fate == fate).map(|field| field.name).collect()
}

#[test]
fn law_07_every_kept_field_and_every_unknown_one_is_in_the_copy_as_it_was() {
    for shape in shapes() {
        let kept = names(shape, Fate::Kept).into_iter().chain(["newInKubernetes"]);
        let leaf: Map<String, Value> = kept.map(|name| (name.to_owned(), marker(name))).collect();
        let spec = spec_with(shape.path, Value::Object(leaf.clone()));
        for frame in [frame(), reaching()] {
            let copy = copied(&spec, &frame);
            for (name, value) in &leaf {
                assert_eq!(&at(&copy, shape.path)[name], value, "{}.{name}", shape.name);
            }
        }
    }
}

#[test]
fn what_is_left_out_is_not_in_the_copy() {
    for shape in shapes() {
        for name in names(shape, Fate::LeftOut) {
            let spec = spec_with(shape.path, json!({ name: [{ "conditionType": "virtual" }] }));
            let copy = render_copy(&vpod("web", &spec), &reaching()).unwrap();
            assert_eq!(at(&copy["spec"], shape.path).get(name), None, "{}.{name}", shape.name);
        }
    }
}

#[test]
fn what_is_refused_makes_no_copy() {
    let mut tried = 0;
    for shape in shapes() {
        for name in names(shape, Fate::Refused) {
            let value = if name == "resourceClaims" { json!([{}]) } else { json!({}) };
            let spec = spec_with(shape.path, json!({ name: value }));
            assert!(render_copy(&vpod("web", &spec), &reaching()).is_err(), "{}.{name}", shape.name);
            tried += 1;
        }
    }
    assert_eq!(tried, 4);
}

#[test]
fn what_the_transformation_drops_is_never_called_kept() {
    let spec = shape("PodSpec").unwrap();
    for dropped in crate::podspec::rewrite::DROPPED {
        let field = spec.fields().find(|field| field.name == dropped).unwrap();
        assert_ne!(field.fate, Fate::Kept, "{dropped}");
    }
}

#[test]
fn every_type_is_reached_and_every_field_says_why() {
    for shape in shapes() {
        let inside = |other: &Shape| other.fields().any(|field| field.fate == Fate::Inside(shape.name));
        assert!(shape.name == "PodSpec" || shapes().any(inside), "{}", shape.name);
        let mut names: Vec<_> = shape.fields.iter().map(|field| field.name).collect();
        let listed = names.len();
        names.dedup();
        assert!(names.is_sorted() && names.len() == listed, "{}: sorted, each once", shape.name);
        for Field { name, fate, why } in shape.fields() {
            match fate {
                Fate::Inside(inner) => assert!(super::shape(inner).is_some(), "{}.{name}", shape.name),
                _ => assert!(!why.is_empty(), "{}.{name}", shape.name),
            }
        }
    }
}

/// As an API server describes exactly what the table has.
fn schemas() -> Value {
    let property = |field: &Field| match field.fate {
        Fate::Inside(inner) => {
            json!({ "items": { "allOf": [{ "$ref": format!("#/components/schemas/io.k8s.api.core.v1.{inner}") }] } })
        }
        _ => json!({ "type": "string" }),
    };
    let properties = |shape: &Shape| -> Map<String, Value> {
        shape.fields().map(|field| (field.name.to_owned(), property(field))).collect()
    };
    let schema =
        |shape: &Shape| (format!("io.k8s.api.core.v1.{}", shape.name), json!({ "properties": properties(shape) }));
    Value::Object(shapes().map(schema).collect())
}

#[test]
fn a_field_that_a_newer_kubernetes_adds_is_named() {
    let mut schemas = schemas();
    assert_eq!(unclassified(&schemas), [""; 0]);
    schemas["io.k8s.api.core.v1.Container"]["properties"]["secretSauceRef"] = json!({});
    schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"] = json!({ "items": {} });
    schemas.as_object_mut().unwrap().remove("io.k8s.api.core.v1.EnvVar");
    assert_eq!(
        unclassified(&schemas),
        ["PodSpec.volumes: is no Volume", "Container.secretSauceRef", "EnvVar: no such type"]
    );
}

#[test]
fn a_kept_field_in_which_a_pod_names_a_secret_is_named() {
    let mut schemas = schemas();
    let to = |name: &str| json!({ "allOf": [{ "$ref": format!("#/components/schemas/io.k8s.api.core.v1.{name}") }] });
    schemas["io.k8s.api.core.v1.Volume"]["properties"]["nfs"] = to("NFSVolumeSource");
    schemas["io.k8s.api.core.v1.NFSVolumeSource"] =
        json!({ "properties": { "self": to("NFSVolumeSource"), "server": { "type": "string" } } });
    assert_eq!(unclassified(&schemas), [""; 0]);
    schemas["io.k8s.api.core.v1.NFSVolumeSource"]["properties"]["secretRef"] = to("LocalObjectReference");
    assert_eq!(unclassified(&schemas), ["Volume.nfs: names an object, and is kept"]);
}

#[test]
fn the_reference_lists_every_field_of_every_type() {
    let files = render();
    let [(name, text)] = &files[..] else { panic!("{files:?}") };
    assert_eq!(name, "podspec.md");
    for shape in shapes() {
        assert!(text.contains(&format!("({})\n", shape.name)));
        for field in shape.fields {
            assert!(text.contains(&format!("| `{}` |", field.name)), "{}", field.name);
        }
    }
}
