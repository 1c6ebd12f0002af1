//! Where the control-plane binaries are: the folder that `testbed/build` fills.
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
        let found = Self::ask()?;
        Ok(FOUND.get_or_init(|| found).clone())
    }

    fn ask() -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/build");
        let output = Command::new(&script)
            .arg("--where")
            .output()
            .with_context(|| format!("running {} --where", script.display()))?;
        ensure!(
            output.status.success(),
            "{} --where: {}",
            script.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        if !folder.join("complete").exists() {
            bail!(
                "the test control planes are not built (no {}): run `make testbed`",
                folder.join("complete").display()
            );
        }
        Ok(Self(folder))
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
