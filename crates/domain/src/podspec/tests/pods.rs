//! Pods as they are found in clusters: a mesh sidecar, a database, training, CI, operators, and the shapes of public charts.
//! Each file of `pods/` is a virtual pod; beside it stands its copy (`….copy.json`) or why it is refused (`….refused.txt`).

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// Every virtual pod: where its file is, without the suffix, and its text.
fn pods() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/podspec/tests/pods");
    let mut pods = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.extension().is_some_and(|extension| extension == "json") && !name.contains('.') {
            pods.push((path.with_extension(""), fs::read_to_string(&path).unwrap()));
        }
    }
    pods.sort();
    assert!(pods.len() >= 20, "{}", pods.len());
    pods
}

#[test]
fn pods_of_real_clusters_are_copied_or_refused_as_expected() {
    for (path, pod) in pods() {
        match render_copy(&pod, &reaching()) {
            Ok(mut copy) => {
                // Tests of later changes look at these.
                for marks in [keys::VIRTUAL_POD_MARKS, keys::CARRIED] {
                    copy["metadata"]["annotations"].as_object_mut().unwrap().remove(marks).unwrap();
                }
                let expected = fs::read_to_string(path.with_extension("copy.json")).unwrap_or_default();
                let expected: Value = serde_json::from_str(&expected).unwrap_or_default();
                assert_eq!(copy, expected, "{}: expected otherwise, got\n{copy}", path.display());
            }
            Err(error) => {
                let expected = fs::read_to_string(path.with_extension("refused.txt")).unwrap_or_default();
                assert_eq!(error.to_string(), expected.trim_end(), "{}", path.display());
            }
        }
    }
}
