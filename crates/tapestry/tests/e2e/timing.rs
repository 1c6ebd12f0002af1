//! How long each test took, for `make test` to show the slowest. Must not fail a test.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

/// Runs a test and notes its time under the name of the function that wrote the future.
pub(crate) async fn timed<Test: Future<Output = Result<()>>>(test: Test) -> Result<()> {
    let _note = Note::begin(test_name::<Test>());
    test.await
}

/// The path of the test function in which a closure or future was written: `nodes::law_09_…`.
pub(crate) fn test_name<Closure>() -> &'static str {
    let path = std::any::type_name::<Closure>();
    let path = path.split("::{{closure}}").next().unwrap_or(path);
    path.split_once("::").map_or(path, |(_, inside)| inside)
}

/// Writes its line when dropped, so that a test that fails is timed too.
pub(crate) struct Note {
    name: &'static str,
    began: Instant,
}

impl Note {
    pub(crate) fn begin(name: &'static str) -> Self {
        Self { name, began: Instant::now() }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let line = format!("{:.1} {}\n", self.began.elapsed().as_secs_f32(), self.name);
        // Without these figures there is just no list of the slowest tests.
        if let Some(path) = times() {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
    }
}

/// `<target>/e2e-times.txt`: we run as `<target>/<profile>/deps/e2e-<hash>`.
fn times() -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    Some(target.join("e2e-times.txt"))
}

#[test]
fn a_test_is_timed_under_its_own_name() {
    fn name_of<Test: Future>(_: &Test) -> &'static str {
        test_name::<Test>()
    }
    let test = async {};
    assert_eq!(name_of(&test), "timing::a_test_is_timed_under_its_own_name");
}
