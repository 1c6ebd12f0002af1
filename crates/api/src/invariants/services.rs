//! What must hold of Services that are carried.

use serde_json::Value;
use tapestry_domain::names;
use tapestry_domain::services::{ingress, read_copy, read_service};

use super::{Snapshot, annotation, items, leaving, marked, name, namespace, place, text, uid};
use crate::keys;

/// Services of both clusters, as far as one binding is concerned.
#[derive(Default)]
pub struct CarriedServices<'a> {
    /// `spec.clusterID` of the binding.
    pub cluster: &'a str,
    /// `spec.serviceNamespaces` of the binding.
    pub namespaces: Vec<&'a str>,
    /// All Services of the virtual cluster.
    pub sources: Vec<&'a Value>,
    /// All Services of the mount namespace.
    pub copies: Vec<&'a Value>,
}

impl Snapshot<'_> {
    /// Every Service that is carried has one copy that says the same, no other copy of ours exists, and a virtual Service has the
    /// addresses of its copy.
    pub(super) fn services_follow(&self, found: &mut Vec<String>) {
        let CarriedServices { namespaces, sources, copies, .. } = &self.services;
        let label = self.origin_label();
        let mut rest: Vec<&Value> = copies.iter().copied().filter(|copy| self.is_service_copy(copy, &label)).collect();
        for source in sources {
            let own = (namespace(source), name(source)) == ("default", "kubernetes");
            let digest = read_service(&source.to_string(), &label).ok().filter(|_| !own);
            let mark = digest.and_then(|digest| digest.mark.ok());
            let wanted = mark.filter(|_| namespaces.contains(&namespace(source)));
            let points = |copy: &&Value| {
                annotation(copy, keys::VIRTUAL_NAMESPACE) == namespace(source)
                    && annotation(copy, keys::VIRTUAL_NAME) == name(source)
            };
            let here: Vec<&Value> = rest.iter().copied().filter(points).collect();
            let mut copy = None;
            if let Some(mark) = wanted {
                rest.retain(|copy| !points(copy));
                match here[..] {
                    [one] => {
                        same_service(source, one, mark, found);
                        copy = Some(one);
                    }
                    [] if self.no_name_is_free(source, &label) => {}
                    [] => found.push(format!("Service {} has no copy", place(source))),
                    _ => found.push(format!("Service {} has {} copies", place(source), here.len())),
                }
            }
            let balanced = digest.is_some_and(|digest| digest.balanced);
            self.same_addresses(source, copy.filter(|_| balanced), found);
        }
        for copy in rest {
            found.push(format!("Service {} is a copy of no Service that is carried", place(copy)));
        }
    }

    /// Whether it carries our origin, and a name that we give.
    fn is_service_copy(&self, copy: &Value, label: &str) -> bool {
        let ours =
            annotation(copy, keys::ORIGIN) == self.origin || text(&copy["metadata"]["labels"][keys::ORIGIN]) == label;
        let (namespace, of) = (annotation(copy, keys::VIRTUAL_NAMESPACE), annotation(copy, keys::VIRTUAL_NAME));
        ours && (name(copy) == of || name(copy) == names::service_name(label, namespace, of))
    }

    /// Whether Services that are not this one's copies have both names that its copy could have.
    fn no_name_is_free(&self, source: &Value, label: &str) -> bool {
        let taken = |wanted: &str| self.services.copies.iter().any(|copy| name(copy) == wanted);
        let plain = !names::is_service_name(name(source)) || taken(name(source));
        plain && taken(&names::service_name(label, namespace(source), name(source)))
    }

    /// Our entries in the status are those of the copy, and the Service says which they are.
    fn same_addresses(&self, source: &Value, copy: Option<&Value>, found: &mut Vec<String>) {
        let entries = |service: &Value| items(&service["status"]["loadBalancer"]["ingress"]).to_vec();
        let recorded = annotation(source, &format!("{}.{}", keys::LOAD_BALANCER, self.services.cluster));
        let recorded: Vec<Value> = serde_json::from_str(recorded).unwrap_or_default();
        let wanted = copy.map(entries).unwrap_or_default();
        if recorded != wanted || !ingress::holds(&entries(source), &recorded, &wanted) {
            found.push(format!("Service {} does not have the addresses of its copy: {wanted:?}", place(source)));
        }
    }
}

fn same_service(source: &Value, copy: &Value, mark: u64, found: &mut Vec<String>) {
    let digest = read_copy(&copy.to_string()).ok();
    if annotation(copy, keys::VIRTUAL_UID) != uid(source) || digest.and_then(|digest| digest.mark) != Some(mark) {
        found.push(format!("Service {} does not hold what {} says", place(copy), place(source)));
    }
    if !digest.is_some_and(|digest| digest.intact) {
        found.push(format!("Service {} was changed by another client", place(copy)));
    }
    if leaving(copy) {
        found.push(format!("Service {} is still being deleted", place(copy)));
    }
    marked(copy, found);
}
