//! The log filter, as users write it: a level, `target=level` pairs, or both, separated by commas.
//! Knows no regular expressions, spans or fields, so that reading a filter costs a few comparisons, and never silences errors.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Longer filters are refused.
pub const MAX_LENGTH: usize = 4096;
/// More pairs than this are refused: each one is compared with the target of every log line.
const MAX_PAIRS: usize = 32;

/// Crates below ours, by the beginning of their targets, and the most they may log whatever the user asks for. kube logs
/// whole answers that it cannot read at WARN, and an answer may be a Secret (law 10); the others log every packet.
const LIMITED: [(&str, LevelFilter); 5] = [
    ("kube_client", LevelFilter::ERROR),
    ("hyper", LevelFilter::WARN),
    ("rustls", LevelFilter::WARN),
    ("tower", LevelFilter::WARN),
    ("h2", LevelFilter::WARN),
];

/// What is logged. Displays as it can be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The level of all targets that no pair names.
    level: LevelFilter,
    /// By the beginning of a target; the longest that fits counts.
    targets: BTreeMap<String, LevelFilter>,
}

/// A filter that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFilter {
    /// There is nothing in it.
    #[error("the log filter is empty")]
    Empty,
    /// More than [`MAX_LENGTH`] bytes.
    #[error("the log filter has {0} bytes, more than {MAX_LENGTH}")]
    TooLong(usize),
    /// More than 32 pairs.
    #[error("the log filter names more than {MAX_PAIRS} targets")]
    TooMany,
    /// No level where one is needed.
    #[error("{0:?} is not a log level")]
    NotALevel(String),
    /// Not a module path before `=`.
    #[error("{0:?} is not a log target")]
    NotATarget(String),
    /// `off` would silence errors too.
    #[error("logging cannot be switched off, because errors must be seen")]
    Off,
    /// Two levels for all targets, or for one.
    #[error("the log filter names two levels for {0}")]
    Twice(String),
}

impl BadFilter {
    /// What users can write instead.
    pub const HINT: &str =
        "use error, warn, info, debug or trace, or target=level pairs, as in info,tapestry_cluster=debug";
}

impl FromStr for Filter {
    type Err = BadFilter;

    fn from_str(text: &str) -> Result<Self, BadFilter> {
        if text.len() > MAX_LENGTH {
            return Err(BadFilter::TooLong(text.len()));
        }
        if text.trim().is_empty() {
            return Err(BadFilter::Empty);
        }
        let (mut level, mut targets) = (None, BTreeMap::new());
        for part in text.split(',').map(str::trim) {
            let Some((target, wanted)) = part.split_once('=') else {
                if level.replace(parse_level(part)?).is_some() {
                    return Err(BadFilter::Twice("all targets".to_owned()));
                }
                continue;
            };
            let (target, wanted) = (parse_target(target.trim())?, parse_level(wanted.trim())?);
            if targets.len() == MAX_PAIRS {
                return Err(BadFilter::TooMany);
            }
            if targets.insert(target.to_owned(), wanted.min(limit(target))).is_some() {
                return Err(BadFilter::Twice(target.to_owned()));
            }
        }
        Ok(Self { level: level.unwrap_or(LevelFilter::INFO), targets })
    }
}

impl Filter {
    /// As the subscriber needs it, with the limits of [`LIMITED`].
    pub(super) fn targets(&self) -> Targets {
        let limits = LIMITED.map(|(target, most)| (target, self.level.min(most)));
        let wanted = self.targets.iter().map(|(target, level)| (target.as_str(), *level));
        Targets::new().with_default(self.level).with_targets(limits).with_targets(wanted)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.level)?;
        self.targets.iter().try_for_each(|(target, level)| write!(f, ",{target}={level}"))
    }
}

fn parse_level(text: &str) -> Result<LevelFilter, BadFilter> {
    let levels = [LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    if text.eq_ignore_ascii_case("off") {
        return Err(BadFilter::Off);
    }
    let level = levels.into_iter().find(|level| text.eq_ignore_ascii_case(&level.to_string()));
    level.ok_or_else(|| BadFilter::NotALevel(shorten(text)))
}

/// A module path, or the beginning of one: `tapestry_cluster::gate`.
fn parse_target(text: &str) -> Result<&str, BadFilter> {
    let word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if text.len() <= 128 && text.split("::").all(word) { Ok(text) } else { Err(BadFilter::NotATarget(shorten(text))) }
}

/// The most that a target may log.
fn limit(target: &str) -> LevelFilter {
    let limited = LIMITED.iter().find(|(crates, _)| target.starts_with(crates));
    limited.map_or(LevelFilter::TRACE, |(_, most)| *most)
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracing::Level;

    use super::*;

    fn parse(text: &str) -> Result<Filter, BadFilter> {
        text.parse()
    }

    #[test]
    fn a_filter_is_a_level_and_pairs() {
        let filter = parse(" Info , tapestry_cluster=debug,tapestry_engine::lead = TRACE").unwrap();
        assert_eq!(filter.to_string(), "info,tapestry_cluster=debug,tapestry_engine::lead=trace");
        let targets = filter.targets();
        assert!(targets.would_enable("tapestry_cluster::gate", &Level::DEBUG));
        assert!(!targets.would_enable("tapestry_cluster::gate", &Level::TRACE));
        assert!(targets.would_enable("tapestry_engine::lead::fence", &Level::TRACE));
        assert!(!targets.would_enable("tapestry_engine", &Level::DEBUG));
    }

    #[test]
    fn pairs_alone_leave_everything_else_at_info() {
        let targets = parse("tapestry_cluster=debug").unwrap().targets();
        assert!(targets.would_enable("tapestry_syncer", &Level::INFO));
        assert!(!targets.would_enable("tapestry_syncer", &Level::DEBUG));
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_target() {
        assert_eq!(parse("loud"), Err(BadFilter::NotALevel("loud".to_owned())));
        assert_eq!(parse("tapestry=loud"), Err(BadFilter::NotALevel("loud".to_owned())));
        assert_eq!(parse("info,"), Err(BadFilter::NotALevel(String::new())));
        assert_eq!(parse("  "), Err(BadFilter::Empty));
    }

    #[test]
    fn errors_cannot_be_silenced() {
        assert_eq!(parse("off"), Err(BadFilter::Off));
        assert_eq!(parse("info,tapestry_syncer=OFF"), Err(BadFilter::Off));
    }

    #[test]
    fn regular_expressions_spans_and_fields_are_refused() {
        for text in
            ["[{x=(a+)+$}]=info", "tapestry[span]=info", "tapestry[{uid=7}]=debug", "a.*=info", "=info", "a::=info"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse(&format!("info,{}=debug", "a".repeat(5000))), Err(BadFilter::TooLong(5011)));
        let many: Vec<String> = (0..33).map(|number| format!("a{number}=info")).collect();
        assert_eq!(parse(&many.join(",")), Err(BadFilter::TooMany));
        assert_eq!(parse("info,debug"), Err(BadFilter::Twice("all targets".to_owned())));
        assert_eq!(parse("a=info,a=debug"), Err(BadFilter::Twice("a".to_owned())));
    }

    #[test]
    fn law_10_no_filter_makes_the_client_log_whole_answers() {
        for text in ["trace", "kube_client=trace", "kube_client::client=trace", "kube=trace", "warn,kube_c=trace"] {
            let targets = parse(text).unwrap().targets();
            assert!(!targets.would_enable("kube_client::client", &Level::WARN), "{text}");
            assert!(targets.would_enable("kube_client::client", &Level::ERROR), "{text}");
            assert!(!targets.would_enable("hyper_util::client::legacy::pool", &Level::INFO), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = parse(&text);
        }

        #[test]
        fn a_parsed_filter_displays_and_parses_the_same(
            level in "error|WARN|info|Debug|trace",
            pairs in proptest::collection::btree_map("[a-z_]{1,9}(::[a-z_0-9]{1,9}){0,2}", "error|warn|info|debug|TRACE", 0..9),
        ) {
            let pairs = pairs.iter().map(|(target, level)| format!("{target}={level}"));
            let filter = parse(&std::iter::once(level).chain(pairs).collect::<Vec<_>>().join(",")).unwrap();
            prop_assert_eq!(parse(&filter.to_string()).unwrap(), filter.clone());
            let targets = filter.targets();
            prop_assert!(targets.would_enable("tapestry_syncer", &Level::ERROR));
            prop_assert!(!targets.would_enable("kube_client::client", &Level::WARN));
        }
    }
}
