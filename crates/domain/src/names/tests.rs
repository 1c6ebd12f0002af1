//! Tests of names: Kubernetes accepts what we make, and marks never change.
//! They must not be adjusted when a mark changes: that would orphan objects in real clusters.

use proptest::prelude::*;

use super::*;

#[test]
fn marks_never_change_between_releases() {
    // sha256 of "vnode\0cls-a\0node-1\0", "label\0a b\0" and "origin\0vc\0cb\0", worked out with coreutils' sha256sum and base32.
    assert_eq!(vnode_name_hashed("cls-a", "node-1"), "vnode-cls-a-node-1-xso6cgnebt");
    assert_eq!(label_value("a b"), "a-b-lmchrbh7ir");
    assert_eq!(origin_hash("vc", "cb"), "ab969591e2c5c0586ffd692c09ad3abd");
    // "dependent\0origin\0team1\0app-config\0" and "token\0origin\0uid-1\0", in the same way.
    assert_eq!(dependent_name("origin", "team1", "app-config"), "app-config-j3kf5afmvsqwtshv");
    assert_eq!(token_secret_name("origin", "uid-1", "web-0"), "web-0-token-jknjkiej2zd6y4gn");
    assert_eq!(claim_name("origin", "team1", "data-db-0"), "data-db-0-qthfnbjyhz646lz2");
    assert_eq!(volume_name("origin", "pvc-1"), "pvc-1-hmpwhmhuwkczp5da");
}

#[test]
fn a_virtual_node_shows_cluster_and_node() {
    assert_eq!(vnode_name("cls-worker1", "worker-1"), "vnode-cls-worker1-worker-1");
    assert_eq!(vnode_name("a", "ip-10-0-0-1.ec2.internal"), "vnode-a-ip-10-0-0-1.ec2.internal");
    let exactly_63 = "n".repeat(63 - "vnode-cls-a-".len());
    assert_eq!(vnode_name("cls-a", &exactly_63), format!("vnode-cls-a-{exactly_63}"));
}

#[test]
fn a_long_virtual_node_name_keeps_its_beginning_and_differs_by_its_end() {
    let (first, second) = ("n".repeat(60) + "1", "n".repeat(60) + "2");
    let name = vnode_name("cls-a", &first);
    assert_eq!(name.len(), 63);
    assert!(name.starts_with("vnode-cls-a-nnnn"), "{name}");
    assert_ne!(name, vnode_name("cls-a", &second));
}

#[test]
fn names_that_clash_differ_in_their_hashed_form() {
    assert_eq!(vnode_name("a", "b-c"), vnode_name("a-b", "c"));
    assert_ne!(vnode_name_hashed("a", "b-c"), vnode_name_hashed("a-b", "c"));
}

#[test]
fn a_cut_never_ends_in_a_dash_or_dot() {
    let node = format!("{}{}tail{}", "n".repeat(39), ".", "x".repeat(40));
    let name = vnode_name("cls-a", &node);
    assert!(!name.contains(".-") && !name.contains("--"), "{name}");
    let pod = format!("{}.{}", "p".repeat(39), "q".repeat(30));
    assert_eq!(physical_pod_name(&pod, [0; 8]), format!("{}-aaaaaaaaaa", "p".repeat(39)));
}

#[test]
fn a_physical_pod_shows_its_virtual_name_and_the_given_entropy() {
    assert_eq!(physical_pod_name("web-0", [0xff; 8]), "web-0-7777777777");
    assert_eq!(physical_pod_name("web-0", [0, 0, 0, 0, 0, 0, 0, 0x3f]), "web-0-aaaaaaaaaa");
    assert_eq!(physical_pod_name("web-0", [0b0000_1000, 0, 0, 0, 0, 0, 0x40, 0]), "web-0-baaaaaaaab");
    assert_eq!(physical_pod_name("...", [0; 8]), "pod-aaaaaaaaaa");
}

#[test]
fn the_other_name_of_a_service_is_a_label_that_starts_with_a_letter() {
    // "service\0origin\0team1\0web\0", worked out with coreutils' sha256sum and base32.
    assert_eq!(service_name("origin", "team1", "web"), "web-66jqadzxq7rs4s5m");
    for name in ["web", "1-web", "x.y", &"w".repeat(63), &format!("{}-{}", "w".repeat(45), "x".repeat(10))] {
        let other = service_name("origin", "team1", name);
        assert!(is_service_name(&other), "{other}");
        assert_ne!(other, service_name("origin", "team2", name));
        assert_ne!(other, service_name("another", "team1", name));
    }
    assert!(is_service_name("web-1") && !is_service_name("1-web") && !is_service_name("web.x") && !is_service_name(""));
}

#[test]
fn a_dependent_has_one_name_per_origin_namespace_and_name() {
    let name = dependent_name("vc/cb", "team1", "config");
    assert_eq!(name, dependent_name("vc/cb", "team1", "config"));
    for other in [
        dependent_name("vc/other", "team1", "config"),
        dependent_name("vc/cb", "team2", "config"),
        dependent_name("vc/cb", "team1-", "config"),
        dependent_name("vc/cb", "team1", "config2"),
    ] {
        assert_ne!(name, other);
    }
    let long = "c".repeat(200);
    assert_eq!(dependent_name("vc/cb", "team1", &long).len(), 57);
    assert_ne!(dependent_name("vc/cb", "team1", &long), dependent_name("vc/cb", "team1", &long[1..]));
    assert_ne!(token_secret_name("vc/cb", "u1", "web"), token_secret_name("vc/cb", "u2", "web"));
}

#[test]
fn a_host_name_is_the_pods_name_made_valid() {
    assert_eq!(hostname("web-0").as_deref(), Some("web-0"));
    assert_eq!(hostname("web.v1").as_deref(), Some("web-v1"));
    assert_eq!(hostname(&"a".repeat(100)), Some("a".repeat(63)));
    assert_eq!(hostname(&format!("{}-.b", "a".repeat(62))), Some("a".repeat(62)));
    assert_eq!(hostname("-."), None);
    assert_eq!(hostname(""), None);
}

#[test]
fn names_that_would_leave_their_place_in_a_url_are_refused() {
    for hostile in
        ["..", "../x", "a/b", "a?b", "a%2fb", "a b", "A", "", "-a", "a-", "a..b", ".a", "a.", "ä", "a\0", "a\n"]
    {
        assert!(DnsSubdomain::parse(hostile).is_err(), "{hostile:?}");
        assert!(DnsLabel::parse(hostile).is_err(), "{hostile:?}");
    }
    assert!(DnsLabel::parse("a.b").is_err());
    assert_eq!(&*DnsSubdomain::parse("a.b-c.9").unwrap(), "a.b-c.9");
    assert!(DnsLabel::parse(&"a".repeat(63)).is_ok() && DnsLabel::parse(&"a".repeat(64)).is_err());
    assert!(DnsSubdomain::parse(&"a".repeat(253)).is_ok() && DnsSubdomain::parse(&"a".repeat(254)).is_err());
    assert!(serde_json::from_str::<DnsLabel>(r#""../x""#).is_err());
}

#[test]
fn keys_have_at_most_one_domain() {
    for fine in ["app", "App_1.x", "tapestry.io/managed-by", "nvidia.com/gpu"] {
        assert_eq!(check_qualified_name(fine), Ok(()), "{fine}");
    }
    for bad in ["", "/", "a/", "/a", "a/b/c", "A.io/x", "-a", "a b", &"a".repeat(64)] {
        assert!(check_qualified_name(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_refusal_says_what_is_allowed() {
    assert_eq!(
        DnsLabel::parse("My_Cluster").unwrap_err().to_string(),
        "`My_Cluster` is not valid: only a-z, 0-9 and '-', beginning and ending with a letter or digit"
    );
    assert!(DnsLabel::parse(&"x".repeat(9000)).unwrap_err().to_string().len() < 200);
}

#[test]
fn a_valid_label_value_is_left_alone() {
    for value in ["", "web", "Web_1.x", &"a".repeat(63)] {
        assert!(matches!(label_value(value), Cow::Borrowed(same) if same == value));
    }
    assert_ne!(label_value("a b"), label_value("a/b"));
}

proptest! {
    #[test]
    fn every_label_value_is_valid(text in ".{0,100}") {
        prop_assert_eq!(check_label_value(&label_value(&text)), Ok(()));
    }

    #[test]
    fn every_made_name_is_valid(
        cluster in "[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?",
        name in "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?){0,3}",
        entropy in any::<[u8; 8]>(),
    ) {
        for vnode in [vnode_name(&cluster, &name), vnode_name_hashed(&cluster, &name)] {
            prop_assert_eq!(check_dns_subdomain(&vnode), Ok(()));
            prop_assert_eq!(check_label_value(&vnode), Ok(()));
            prop_assert!(vnode.starts_with(&format!("vnode-{cluster}-")), "{}", vnode);
        }
        let pod = physical_pod_name(&name, entropy);
        prop_assert!(check_dns_subdomain(&pod).is_ok() && pod.len() <= 51, "{}", pod);
        prop_assert!(is_physical_pod_name(&pod, &name) && !is_physical_pod_name(&pod, "another-pod"));
        prop_assert!(hostname(&name).is_some());
        let dependent = dependent_name("vc/cb", &cluster, &name);
        prop_assert!(check_dns_subdomain(&dependent).is_ok() && dependent.len() <= 57, "{}", dependent);
        let token = token_secret_name("vc/cb", &cluster, &name);
        prop_assert!(check_dns_subdomain(&token).is_ok() && token.len() <= 63, "{}", token);
    }

    #[test]
    fn names_of_any_text_never_panic(text in ".{0,100}") {
        let _ = (vnode_name("a", &text), physical_pod_name(&text, [0; 8]), hostname(&text), origin_hash(&text, &text));
        let _ = (dependent_name(&text, &text, &text), token_secret_name(&text, &text, &text));
    }
}

#[test]
fn only_names_that_we_give_end_with_a_hash() {
    for given in
        [dependent_name("o", "demo", "settings"), dependent_name("o", "demo", "-"), token_secret_name("o", "u", "web")]
    {
        assert!(ends_with_hash(&given), "{given}");
    }
    for chosen in
        ["settings", "settings-backup", "kube-root-ca.crt", "a-0123456789abcdef", "settings-abcdefghijklmnopq"]
    {
        assert!(!ends_with_hash(chosen), "{chosen}");
    }
}
