//! Programs that hang.

use std::time::Instant;

use kube::config::{AuthInfo, ExecConfig};

use super::*;

const SHORT: Duration = Duration::from_millis(50);

fn config(exec: Option<ExecConfig>) -> Config {
    let mut config = Config::new("https://127.0.0.1:6443".parse().unwrap());
    config.auth_info = AuthInfo { exec, ..AuthInfo::default() };
    config
}

fn exec() -> ExecConfig {
    serde_json::from_str(r#"{"command": "hunter2"}"#).unwrap()
}

#[test]
fn law_11_a_plugin_that_hangs_fails_after_the_deadline_and_is_named() {
    let plugins = Plugins::default();
    let (end_tx, end) = std::sync::mpsc::channel::<()>();
    let start = Instant::now();
    let said =
        plugins.build_in_time(config(Some(exec())), SHORT, move |_| Ok(end.recv().is_ok())).unwrap_err().to_string();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(said.contains("exec plugin") && said.contains("user.exec") && said.contains("50ms"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    drop(end_tx);
}

#[test]
fn law_11_only_a_few_plugins_hang_at_a_time() {
    let plugins = Plugins::default();
    let (end_tx, end) = std::sync::mpsc::channel::<()>();
    let end = Arc::new(std::sync::Mutex::new(end));
    for run in 0..=MOST {
        let end = Arc::clone(&end);
        let said = plugins.build_in_time(config(Some(exec())), SHORT, move |_| Ok(end.lock().unwrap().recv().is_ok()));
        let said = said.unwrap_err().to_string();
        assert_eq!(said.contains("have not ended yet"), run == MOST, "{run}: {said}");
    }
    drop(end_tx);
}

#[test]
fn a_client_without_a_plugin_is_built_at_once_whatever_hangs() {
    let here = std::thread::current().id();
    let built = Plugins::default().build_in_time(config(None), Duration::ZERO, |_| Ok(std::thread::current().id()));
    assert_eq!(built.unwrap(), here);
}
