//! Where the binaries of control planes and of real nodes are: the folders that `testbed/build` and `testbed/build-node` fill.
//! Must not build them; a test that silently compiles Kubernetes for six minutes looks like a test that hangs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The folder with etcd, the Kubernetes control plane and kwok, complete.
#[derive(Debug, Clone)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// Asks `testbed/build --where`, because only that script knows how the cache key is made; once, because that takes 0.1 s.
    pub fn find() -> Result<Self> {
        static FOUND: OnceLock<Binaries> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found.clone());
        }
        let found = Self(ask("build", "the test control planes are not built", "make testbed")?);
        Ok(FOUND.get_or_init(|| found).clone())
    }

    /// The path of one binary, by its file name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// All kwok Stages as one YAML stream. The folder also holds inputs and outputs of kwok's own tests; those are left out.
    pub fn stages(&self) -> Result<String> {
        let folder = self.0.join("stages");
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.sort();
        let mut stages = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            if text.lines().any(|line| line == "kind: Stage") {
                stages.push(text);
            }
        }
        ensure!(!stages.is_empty(), "no kwok Stages in {}: run `make testbed`", folder.display());
        Ok(stages.join("\n---\n"))
    }
}

/// The folder with all that a real node runs, complete: kubelet, containerd, runc, CNI plugins, images.
pub(crate) fn of_a_node() -> Result<PathBuf> {
    ask("build-node", "the parts of real nodes are not built", "make testbed-node")
}

/// The folder that a script of `testbed/` fills.
fn ask(script: &str, missing: &str, remedy: &str) -> Result<PathBuf> {
    let script = scripts().join(script);
    let output = Command::new(&script)
        .arg("--where")
        .output()
        .with_context(|| format!("running {} --where", script.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} --where: {}", script.display(), complaint.trim());
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    if !folder.join("complete").exists() {
        bail!("{missing} (no {}): run `{remedy}`", folder.join("complete").display());
    }
    Ok(folder)
}

/// The folder `testbed/` of the clone that we were built in.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed")
}
