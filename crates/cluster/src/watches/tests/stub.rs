//! An API server that knows one kind of thing: it streams a list, and then what is put. Counts the watches that are open.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

use super::*;
use crate::connect::Trust;
use crate::{Rv, Uid};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Thing {
    pub(super) name: String,
    uid: Uid,
    resource_version: Rv,
}

impl Row for Thing {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.resource_version
    }
    fn deleting(&self) -> bool {
        false
    }
}

pub(super) fn decode(object: &Bytes) -> Result<Option<Thing>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Thing,
    }
    serde_json::from_slice(object).map(|object: Object| Some(object.metadata))
}

pub(super) struct Stub {
    address: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    things: Mutex<Vec<Value>>,
    events: broadcast::Sender<String>,
    version: AtomicU64,
    open: AtomicUsize,
}

impl Stub {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (events, version) = (broadcast::Sender::new(64), AtomicU64::new(10));
        let shared = Arc::new(Shared { things: Mutex::default(), events, version, open: AtomicUsize::new(0) });
        let (mut tasks, serves) = (JoinSet::new(), Arc::clone(&shared));
        tasks.spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                streams.spawn(Arc::clone(&serves).serve(stream));
            }
        });
        Self { address, shared, _tasks: tasks }
    }

    pub(super) async fn cluster(&self) -> Cluster {
        connect(&self.address).await
    }

    pub(super) fn put(&self, name: &str) {
        let mut things = self.shared.things.lock().unwrap();
        let version = self.shared.version.fetch_add(1, Ordering::Relaxed) + 1;
        let thing = json!({"metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()}});
        things.push(thing.clone());
        // Without a watch there is nothing to tell.
        let _ = self.shared.events.send(event("ADDED", &thing));
    }

    /// Waits until so many watches are open.
    pub(super) async fn until_open(&self, count: usize) {
        let open = || self.shared.open.load(Ordering::Relaxed);
        let wait = async {
            while open() != count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let done = tokio::time::timeout(SOON, wait).await;
        assert!(done.is_ok(), "{} watches are open, and not {count}", open());
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let mut request = [0; 4096];
        if stream.read(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        let (list, mut events) = {
            let things = self.things.lock().unwrap();
            let list: String = things.iter().map(|thing| event("ADDED", thing)).collect();
            (list, self.events.subscribe())
        };
        let end = json!({"metadata": {
            "resourceVersion": self.version.load(Ordering::Relaxed).to_string(),
            "annotations": {"k8s.io/initial-events-end": "true"},
        }});
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
        let mut next = Some(format!("{head}{list}{}", event("BOOKMARK", &end)));
        while let Some(text) = next.take() {
            if stream.write_all(text.as_bytes()).await.is_err() {
                break;
            }
            next = tokio::select! {
                event = events.recv() => event.ok(),
                // Whatever it reads: the client has gone.
                _ = stream.read(&mut request) => None,
            };
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

pub(super) async fn connect(address: &str) -> Cluster {
    let kubeconfig = format!(
        "{{kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    );
    Cluster::connect("east", &kubeconfig, Trust::Operator, "test").await.unwrap()
}
