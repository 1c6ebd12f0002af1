//! The requests that a [`Verb::Carry`] consists of, and what their answers mean. Sends nothing: the gate and World's servers do.
//! Never repeats a value of the object in an error.

use std::collections::HashSet;

use k8s_openapi::ByteString;
use serde_json::Value;
use tapestry_domain::dependents::{DependentKind, Marks, render_copy, render_patch, render_raise};
use tapestry_domain::services;
use tapestry_domain::volumes::{VolumeFrame, render_claim_copy, render_volume_copy};

use crate::object::uid_of;
use crate::{Answer, Call, Refusal, Sub, Target, Verb};

/// What an object that the gate shapes has besides what it carries: our labels and annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarryMarks {
    /// They win over those of the source.
    pub labels: Vec<(&'static str, String)>,
    /// They win over those of the source.
    pub annotations: Vec<(&'static str, String)>,
    /// Part of every hash of a value: the origin.
    pub salt: String,
}

/// What the copy of a volume or claim has besides what it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMarks {
    /// They win over those of the source.
    pub labels: Vec<(&'static str, String)>,
    /// They win over those of the source.
    pub annotations: Vec<(&'static str, String)>,
    /// The hash of the origin, from which names follow.
    pub origin: String,
    /// The mount namespace.
    pub mount: String,
    /// A class of the physical cluster, or empty.
    pub storage_class: String,
    /// Namespace and name of the virtual claim.
    pub claim: (String, String),
    /// Of a volume: the UID of the claim's copy, if it exists. Of a claim: the name of the volume's copy.
    pub other: Option<String>,
}

/// What the gate makes of the object that a [`Verb::Carry`] reads. A function of `domain` renders a new copy, another one the patch
/// of a copy that exists; volumes and claims are only created so, because what changes of them later needs no source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A ConfigMap or Secret becomes another of the same kind, with these marks.
    Dependent(DependentKind, CarryMarks),
    /// A Service becomes another, with these marks.
    Service(CarryMarks),
    /// What another client changed of a copy, the object that is read, goes up to its source, the target. Creates nothing.
    Raise {
        /// Of what kind both are.
        kind: DependentKind,
        /// Part of every hash of a value: the origin.
        salt: String,
    },
    /// A PersistentVolume becomes one that keeps its data and waits for the copy of its claim.
    Volume(VolumeMarks),
    /// A PersistentVolumeClaim becomes one that is bound to the copy of its volume.
    Claim(VolumeMarks),
}

/// A [`Verb::Carry`], request by request: read the copy if there is one, read the source, write.
#[derive(Debug, Clone, Copy)]
pub struct Carry<'a> {
    call: &'a Call,
    from: &'a Target,
    shape: &'a Shape,
}

impl Shape {
    /// The body of a new copy under the target's name.
    fn create(&self, source: &str, target: &Target) -> Result<Value, String> {
        let namespace = target.namespace.as_ref().map_or("", crate::Name::as_str);
        match self {
            Self::Dependent(kind, marks) => {
                render_copy(*kind, source, target.name.as_str(), namespace, &marks.borrow())
                    .map_err(|why| why.to_string())
            }
            Self::Service(marks) => services::render_copy(source, target.name.as_str(), namespace, &marks.borrow())
                .map_err(|why| why.to_string()),
            Self::Raise { .. } => Err("a source is never created from its copy".to_owned()),
            Self::Volume(marks) => {
                render_volume_copy(source, &marks.frame(target)).map_err(|why| format!("the volume: {why}"))
            }
            Self::Claim(marks) => {
                render_claim_copy(source, &marks.frame(target)).map_err(|why| format!("the claim: {why}"))
            }
        }
    }

    /// The JSON merge patch that makes the copy what the source says; `None` when nothing differs.
    fn patch(&self, source: &str, copy: &str) -> Result<Option<Value>, String> {
        match self {
            Self::Dependent(kind, marks) => {
                render_patch(*kind, source, copy, &marks.borrow()).map_err(|why| why.to_string())
            }
            Self::Service(marks) => {
                services::render_patch(source, copy, &marks.borrow()).map_err(|why| why.to_string())
            }
            Self::Raise { kind, salt } => render_raise(*kind, source, copy, salt).map_err(|why| why.to_string()),
            Self::Volume(_) | Self::Claim(_) => Err("copies of volumes and claims are only created".to_owned()),
        }
    }
}

impl VolumeMarks {
    fn frame<'a>(&'a self, target: &'a Target) -> VolumeFrame<'a> {
        VolumeFrame {
            name: target.name.as_str(),
            mount: &self.mount,
            labels: &self.labels,
            annotations: &self.annotations,
            origin: &self.origin,
            storage_class: &self.storage_class,
            claim: (&self.claim.0, &self.claim.1),
            other: self.other.as_deref(),
        }
    }
}

impl CarryMarks {
    /// As the shaping functions take them.
    #[must_use]
    pub fn borrow(&self) -> Marks<'_> {
        Marks { labels: self.labels.clone(), annotations: self.annotations.clone(), salt: &self.salt }
    }
}

impl<'a> Carry<'a> {
    /// `None` for other verbs.
    #[must_use]
    pub fn of(call: &'a Call) -> Option<Self> {
        match &call.verb {
            Verb::Carry { from, shape } => Some(Self { call, from, shape }),
            _ => None,
        }
    }

    /// The second request, the first when the copy is created. It reads as evidence, so that no other cluster can pass for the
    /// source's. After the copy: an older source than the one that the copy holds would take changes back.
    #[must_use]
    pub fn read_source(&self) -> Call {
        Call { target: self.from.clone(), verb: Verb::Get, why: self.call.why }
    }

    /// The first request; `None` when the copy is created.
    #[must_use]
    pub fn read_copy(&self) -> Option<Call> {
        let target = self.call.target.clone();
        self.call.target.uid.is_some().then_some(Call { target, verb: Verb::Get, why: self.call.why })
    }

    /// The source, if it is the object, and the version of it, that the call names.
    pub fn judge_source(&self, done: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
        match done {
            Err(Refusal::Gone) => Err(Refusal::Replaced),
            // An answer to an unknown user names nothing; which cluster it was must not be lost.
            Err(Refusal::Denied(mut status)) if status.details.kind.is_empty() => {
                self.from.kind.plural.clone_into(&mut status.details.kind);
                self.from.name.as_str().clone_into(&mut status.details.name);
                Err(Refusal::Denied(status))
            }
            other => {
                let source = expect(self.from, other?)?;
                let same = self.from.rv.is_none_or(|rv| source.version() == Some(rv));
                if same { Ok(source) } else { Err(Refusal::Replaced) }
            }
        }
    }

    /// The copy, if it is the object that the call names.
    pub fn judge_copy(&self, done: Result<Answer, Refusal>) -> Result<Answer, Refusal> {
        expect(&self.call.target, done?)
    }

    /// The last request; `None` when the copy says what the source says.
    pub fn write(&self, source: &Answer, copy: Option<&Answer>) -> Result<Option<Call>, Refusal> {
        let target = &self.call.target;
        let text = text(source).ok_or_else(|| unreadable(self.from, NO_OBJECT))?;
        let broken = |why: String| unreadable(self.from, &why);
        let Some(copy) = copy else {
            let body = self.shape.create(text, target).map_err(broken)?;
            return Ok(Some(self.then(target.clone(), Verb::Create(body))));
        };
        let (Some(shown), Some(version)) = (self::text(copy), copy.version()) else {
            return Err(unreadable(target, NO_OBJECT));
        };
        let patch = self.shape.patch(text, shown).map_err(broken)?;
        // The patch was made for this version: another writer's change in between must not be lost.
        let target = target.clone().rv(version);
        Ok(patch.map(|patch| self.then(target, Verb::Merge(Sub::Main, patch))))
    }

    fn then(&self, target: Target, verb: Verb) -> Call {
        Call { target, verb, why: self.call.why }
    }
}

/// A refusal of a write without the values of its body and of the objects that were read for it, which a server's message may
/// quote: a patch holds only the values that change, and a webhook sees them all.
#[must_use]
pub fn hide_values(write: &Call, read: &[&Answer], refusal: Refusal) -> Refusal {
    let mut values = Vec::new();
    if let Some(body) = write.body() {
        add_values(&body, &mut values);
    }
    for answer in read {
        // What is no JSON was not shaped, and so not written.
        if let Ok(object) = serde_json::from_slice(&answer.object) {
            add_values(&object, &mut values);
        }
    }
    refusal.map_texts(|text| {
        if values.iter().any(|value| quotes(text, value)) {
            HIDDEN.clone_into(text);
        }
    })
}

/// The values of an object, as they are written and decoded.
fn add_values(object: &Value, values: &mut Vec<String>) {
    let held = ["data", "binaryData", "stringData"].iter().filter_map(|field| object.get(field)?.as_object());
    let texts = held.flat_map(|held| held.values().filter_map(Value::as_str));
    let forms = texts.flat_map(|value| [Some(value.to_owned()), decoded(value)]).flatten();
    values.extend(forms.filter(|value| value.len() >= SHORTEST));
}

/// Whether a message repeats a value or a good part of it. Servers and admission webhooks cut long values short, and escape what is
/// in quotation marks.
fn quotes(text: &str, value: &str) -> bool {
    if value.len() < SHORTEST_LINE {
        return has_word(text, value);
    }
    let part = |part: &str| part.len() >= SHORTEST_LINE && text.contains(part);
    if text.contains(value) || value.split(|c: char| c.is_control() || matches!(c, '"' | '\\')).any(part) {
        return true;
    }
    let parts: HashSet<&[u8]> = text.as_bytes().windows(PART).collect();
    value.as_bytes().windows(PART).any(|part| parts.contains(part))
}

/// Whether a message has this value by itself, and not as part of a name or another word.
fn has_word(text: &str, value: &str) -> bool {
    let joined = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    text.match_indices(value).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + value.len()..].chars().next());
        !before.is_some_and(joined) && !after.is_some_and(joined)
    })
}

/// Shorter values and lines are part of many messages by chance; values up to the length of a line count only as words.
const SHORTEST: usize = 4;
const SHORTEST_LINE: usize = 8;
/// So many characters in a row that a message has in common with a value are no chance.
const PART: usize = 16;
const HIDDEN: &str = "(the cluster's message is not shown because it quotes a value)";

fn decoded(value: &str) -> Option<String> {
    let ByteString(bytes) = serde_json::from_value(value.into()).ok()?;
    String::from_utf8(bytes).ok()
}

fn expect(target: &Target, answer: Answer) -> Result<Answer, Refusal> {
    let named = target.uid.as_ref().is_none_or(|uid| uid_of(&answer.object).as_ref() == Some(uid));
    let version = target.rv.is_none_or(|rv| answer.version() == Some(rv));
    if named && version { Ok(answer) } else { Err(Refusal::Replaced) }
}

fn text(answer: &Answer) -> Option<&str> {
    std::str::from_utf8(&answer.object).ok()
}

const NO_OBJECT: &str = "its answer is not an object";

fn unreadable(object: &Target, why: &str) -> Refusal {
    Refusal::of_ours(422, format!("{object}: {why}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::refusal::{Cause, Status};
    use crate::{Kind, Name, Side, Uid, kind};
    use serde_json::json;

    pub(crate) fn marks() -> CarryMarks {
        CarryMarks { labels: vec![("l", "1".to_owned())], annotations: Vec::new(), salt: "s".to_owned() }
    }

    pub(in crate::call) fn object(side: Side, kind: &'static Kind, namespace: &str, name: &str) -> Target {
        Target::namespaced(side, kind, Name::parse(namespace).unwrap(), Name::parse(name).unwrap())
    }

    /// Carries `shop/db` to `mount/db-copy`, which exists if a UID is given.
    pub(crate) fn carry(uid: Option<&str>) -> Call {
        let from = object(Side::Virtual, &kind::SECRET, "shop", "db").uid(&Uid::new("source"));
        let mut target = object(Side::Physical, &kind::SECRET, "mount", "db-copy");
        target.uid = uid.map(Uid::new);
        let shape = Box::new(Shape::Dependent(DependentKind::Secret, marks()));
        Call { target, verb: Verb::Carry { from: Box::new(from), shape }, why: "Test" }
    }

    fn answer(object: &Value) -> Answer {
        Answer { object: object.to_string().into() }
    }

    fn source(uid: &str) -> Value {
        json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": uid, "resourceVersion": "3"},
            "data": {"password": "aHVzaC1odXNo"},
        })
    }

    /// A Secret with this value.
    fn source_with(value: &str) -> Answer {
        let mut object = source("source");
        object["data"]["password"] = serde_json::to_value(ByteString(value.into())).unwrap();
        answer(&object)
    }

    #[test]
    fn a_source_that_is_gone_or_another_one_is_replaced_and_other_refusals_stay() {
        let call = carry(None);
        let carry = Carry::of(&call).unwrap();
        assert_eq!(carry.judge_source(Err(Refusal::Gone)), Err(Refusal::Replaced));
        assert_eq!(carry.judge_source(Ok(answer(&source("later")))), Err(Refusal::Replaced));
        let unknown = Refusal::Unknown("no answer".to_owned());
        assert_eq!(carry.judge_source(Err(unknown.clone())), Err(unknown));
        assert!(carry.judge_source(Ok(answer(&source("source")))).is_ok());
        assert_eq!(carry.read_source().target.uid, Some(Uid::new("source")));
        let mut versioned = call.clone();
        if let Verb::Carry { from, .. } = &mut versioned.verb {
            from.rv = Some(crate::Rv::new(2));
        }
        let judged = Carry::of(&versioned).unwrap().judge_source(Ok(answer(&source("source"))));
        assert_eq!(judged, Err(Refusal::Replaced), "another version than the plan looked at");
        assert_eq!(carry.read_copy(), None);
    }

    #[test]
    fn law_02_a_copy_is_patched_under_its_uid_and_the_version_that_was_read() {
        let call = carry(Some("copy"));
        let carry = Carry::of(&call).unwrap();
        let copy =
            json!({"metadata": {"name": "db-copy", "namespace": "mount", "uid": "copy", "resourceVersion": "8"}});
        assert_eq!(carry.judge_copy(Err(Refusal::Gone)), Err(Refusal::Gone));
        let other = json!({"metadata": {"uid": "other"}});
        assert_eq!(carry.judge_copy(Ok(answer(&other))), Err(Refusal::Replaced));
        let write = carry.write(&answer(&source("source")), Some(&answer(&copy))).unwrap().unwrap();
        let body = write.body().unwrap().into_owned();
        assert_eq!((&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]), (&json!("copy"), &json!("8")));
        assert_eq!(body["data"]["password"], "aHVzaC1odXNo");
    }

    #[test]
    fn law_10_no_error_and_no_printed_call_repeats_a_value() {
        let call = carry(None);
        let carry = Carry::of(&call).unwrap();
        for broken in [r#"{"metadata":{},"data":"aHVzaC1odXNo"}"#, r#"{"data":{"k":aHVzaC1odXNo"#] {
            let refusal = carry.write(&Answer { object: broken.into() }, None);
            assert!(!format!("{refusal:?}").contains("aHVz"), "{refusal:?}");
        }
        let source = answer(&source("source"));
        let write = carry.write(&source, None).unwrap().unwrap();
        let long = source_with("-----BEGIN KEY-----\n0123456789abcdefghijklmnopqrstuvwxyz\nhidden line\n");
        let long = carry.write(&long, None).unwrap().unwrap();
        for cut in ["no: \"0123456789abcdefghij...\"", "no: \"-----BEGIN KEY-----\\n0\"", "ends with hidden line\\n"] {
            let shown = format!("{:?}", hide_values(&long, &[], Refusal::Unknown(cut.to_owned())));
            assert!(shown.contains("not shown"), "{shown}");
        }
        for quoted in ["no: aHVzaC1odXNo", "no: hush-hush"] {
            let cause = Cause { message: quoted.to_owned(), ..Default::default() };
            let mut status = Status { message: quoted.to_owned(), ..Default::default() };
            status.details.causes.push(cause);
            for refusal in [
                Refusal::Invalid(Box::new(status.clone())),
                Refusal::Denied(Box::new(status)),
                Refusal::Unknown(quoted.to_owned()),
            ] {
                let shown = format!("{:?}", hide_values(&write, &[], refusal));
                assert!(!shown.contains("aHVz") && !shown.contains("hush"), "{shown}");
            }
        }
        let quota = Refusal::Denied(Box::new(Status { message: "exceeded quota".to_owned(), ..Default::default() }));
        assert_eq!(hide_values(&write, &[], quota.clone()), quota);
        assert_eq!(call.to_string(), "carry virtual secrets/shop/db to physical secrets/mount/db-copy (Test)");
        assert!(!format!("{call:?} {source:?}").contains("aHVz"));
        assert!(!call.is_read() && call.body().is_none());
    }

    #[test]
    fn law_10_a_refused_patch_repeats_no_value_that_stays_as_it_is() {
        let call = carry(Some("copy"));
        let carry = Carry::of(&call).unwrap();
        let mut copy = source("copy");
        copy["metadata"]["resourceVersion"] = json!("8");
        copy["data"]["theirs"] = json!("b3duZXIncyBvd24=");
        let (source, copy) = (answer(&source("source")), answer(&copy));
        let write = carry.write(&source, Some(&copy)).unwrap().unwrap();
        assert!(write.body().unwrap().get("data").is_none(), "only marks change");
        for quoted in ["no: hush-hush", "no: aHVzaC1odXNo", "no: owner's own"] {
            let shown = hide_values(&write, &[&source, &copy], Refusal::Unknown(quoted.to_owned()));
            assert!(shown.message().contains("not shown"), "{shown:?}");
        }
    }

    #[test]
    fn a_short_value_hides_a_message_only_where_it_is_a_word() {
        let call = carry(None);
        let carry = Carry::of(&call).unwrap();
        let write = carry.write(&source_with("prod"), None).unwrap().unwrap();
        let hidden = |text: &str| hide_values(&write, &[], Refusal::Unknown(text.to_owned())).message() != text;
        for shown in ["secrets \"db-prod\" is forbidden", "the product is sold out", "prod_2 is full"] {
            assert!(!hidden(shown), "{shown}");
        }
        for quoted in ["no: prod", "value \"prod\" is not allowed", "prod.", "password=prod,"] {
            assert!(hidden(quoted), "{quoted}");
        }
    }

    #[test]
    fn a_refusal_to_read_the_source_says_of_which_cluster_it_is() {
        for uid in [None, Some("copy")] {
            let call = carry(uid);
            let carry = Carry::of(&call).unwrap();
            let unknown_user = Refusal::Denied(Box::new(Status { code: 401, ..Default::default() }));
            let refused = carry.judge_source(Err(unknown_user.clone())).unwrap_err();
            assert_eq!(refused.bars(&call).unwrap().side, Side::Virtual);
            assert_eq!(unknown_user.bars(&call).unwrap().side, Side::Physical);
        }
    }
}
