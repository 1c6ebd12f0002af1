//! The calendar compared with a simulated wall clock, minute by minute.
//! It must not share a line with the code under test: it knows only minutes and offsets.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "America/Santiago"];
/// 2024 has a 29th of February.
const YEARS: [i16; 2] = [2024, 2027];
/// Minutes.
const DAY: i64 = 24 * 60;
const DAYS: [&str; 7] = ["Mon", "tue", "WED", "Thursday", "friday", "SATURDAY", "Sun"];

/// A window in minutes of the day; 1440 as an end is 24:00.
#[derive(Debug, Clone)]
struct Written {
    start: i64,
    end: i64,
    days: Vec<usize>,
    zone: Option<usize>,
}

#[derive(Debug, Clone)]
struct Policy {
    year: usize,
    zone: usize,
    windows: Vec<Written>,
    /// Days since 1970.
    except: Vec<i64>,
}

/// Minutes since 1970 of a year in UTC, with a week on either side.
fn minutes(year: usize) -> std::ops::Range<i64> {
    let midnight = |year| moment(&format!("{year}-01-01T00:00[UTC]")).as_second() / 60;
    midnight(YEARS[year]) - 7 * DAY..midnight(YEARS[year] + 1) + 7 * DAY
}

/// What the clock shows at every minute, as days since 1970 and minutes of the day; while the clocks are set back it waits
/// for them.
///
/// So a time that is skipped is reached with the next one, and one that comes twice is reached the first time.
fn clock(zone: usize, year: usize) -> &'static [(i64, i64)] {
    static CLOCKS: [OnceLock<Vec<(i64, i64)>>; ZONES.len() * YEARS.len()] =
        [const { OnceLock::new() }; ZONES.len() * YEARS.len()];
    CLOCKS[zone * YEARS.len() + year].get_or_init(|| {
        let zone = TimeZone::get(ZONES[zone]).unwrap();
        let (mut shown, mut offset) = (i64::MIN, 0);
        let show = |minute: i64| {
            // These zones change their offset on full quarters only, and asking costs most of this test.
            if minute % 15 == 0 {
                offset = zone.to_offset(Timestamp::from_second(minute * 60).unwrap()).seconds() / 60;
            }
            shown = shown.max(minute + i64::from(offset));
            (shown / DAY, shown % DAY)
        };
        minutes(year).map(show).collect()
    })
}

impl Policy {
    fn windows(&self) -> Vec<Written> {
        if self.windows.is_empty() {
            return vec![Written { start: 0, end: DAY, days: vec![], zone: None }];
        }
        self.windows.clone()
    }

    /// The openings within the year, in minutes since 1970, by asking at every minute.
    fn watch(&self) -> Vec<(i64, i64)> {
        let range = minutes(self.year);
        let mut open = vec![false; usize::try_from(range.end - range.start).unwrap()];
        for window in self.windows() {
            let first = range.start / DAY - 3;
            // 1970 began on a Thursday.
            let starts = |day: i64| {
                let weekday = usize::try_from((day + 3) % 7).unwrap();
                !self.except.contains(&day) && (window.days.is_empty() || window.days.contains(&weekday))
            };
            let starts: Vec<_> = (first..range.end / DAY + 3).map(starts).collect();
            let starts = |day: i64| starts[usize::try_from(day - first).unwrap()];
            let overnight = window.end <= window.start;
            for (open, &(day, minute)) in open.iter_mut().zip(clock(window.zone.unwrap_or(self.zone), self.year)) {
                let today = window.start <= minute && (minute < window.end || overnight);
                let yesterday = overnight && minute < window.end;
                *open |= today && starts(day) || yesterday && starts(day - 1);
            }
        }
        let mut openings = Vec::new();
        for (minute, _) in range.zip(open).filter(|(_, open)| *open) {
            match openings.last_mut() {
                Some((_, end)) if *end == minute => *end += 1,
                _ => openings.push((minute, minute + 1)),
            }
        }
        openings
    }

    fn read(&self) -> Calendar {
        let time = |minutes: i64| format!("{:02}:{:02}", minutes / 60, minutes % 60);
        let owned = self.windows.iter().map(|window| {
            let days: Vec<_> = window.days.iter().map(|day| DAYS[*day].to_owned()).collect();
            (time(window.start), time(window.end), days, window.zone.map(|zone| ZONES[zone]))
        });
        let owned: Vec<_> = owned.collect();
        let texts = owned.iter().map(|(start, end, days, zone)| WindowText { start, end, days, zone: *zone });
        let date = |day: &i64| Timestamp::from_second(day * DAY * 60).unwrap().strftime("%Y-%m-%d").to_string();
        let except: Vec<_> = self.except.iter().map(date).collect();
        Calendar::parse(&texts.collect::<Vec<_>>(), Some(ZONES[self.zone]), &except).unwrap()
    }
}

/// Any minute, but half of them where clocks are changed or days begin.
fn any_minute(last: i64) -> impl Strategy<Value = i64> {
    prop_oneof![0..=last, (0..=last / 30).prop_map(|half| half * 30), 0i64..200]
}

fn any_window() -> impl Strategy<Value = Written> {
    let days = prop_oneof![Just(vec![]), prop::collection::vec(0usize..7, 1..7), Just(vec![6])];
    let zone = prop::option::of(0..ZONES.len());
    (any_minute(DAY - 1), any_minute(DAY), prop::bool::weighted(0.1), days, zone)
        .prop_map(|(start, end, whole, days, zone)| Written { start, end: if whole { start } else { end }, days, zone })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let days = prop_oneof![
        prop::collection::vec(0i64..366, 0..8),
        // The end of February, and a long pause.
        Just(vec![58, 59, 60]),
        (0i64..300, 1i64..60).prop_map(|(first, days)| (first..first + days).collect()),
    ];
    (0..YEARS.len(), 0..ZONES.len(), prop::collection::vec(any_window(), 0..5), days).prop_map(
        |(year, zone, windows, days)| {
            let first = minutes(year).start / DAY + 7;
            Policy { year, zone, windows, except: days.into_iter().map(|day| first + day).collect() }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_year_is_as_a_watcher_of_the_clocks_sees_it(policy in any_policy()) {
        let at = |minute: i64| Timestamp::from_second(minute * 60).unwrap();
        let (from, to) = (at(minutes(policy.year).start), at(minutes(policy.year).end));
        let within = |(start, end): (Timestamp, Timestamp)| (start.max(from), end.min(to));
        let spans: Vec<_> = policy.read().spans(from, to).into_iter().map(within).collect();
        let watched: Vec<_> = policy.watch().into_iter().map(|(start, end)| (at(start), at(end))).collect();
        prop_assert_eq!(spans, watched);
    }
}

proptest! {
    #[test]
    fn the_state_lasts_from_edge_to_edge_and_turns_there(policy in any_policy(), second in 0i64..366 * 86_400, nano in 0i32..1_000_000_000) {
        let calendar = policy.read();
        let now = Timestamp::new(minutes(policy.year).start * 60 + second, nano).unwrap();
        let before = |moment: Timestamp| moment.checked_sub(INSTANT).unwrap();
        let hours = calendar.at(now);
        prop_assert!(hours.covers(now));
        if let Some(since) = hours.since {
            prop_assert!(since <= now);
            prop_assert_eq!(calendar.at(since), hours);
            let earlier = calendar.at(before(since));
            prop_assert_eq!((earlier.open, earlier.until), (!hours.open, Some(since)));
        }
        if let Some(until) = hours.until {
            prop_assert!(until > now);
            let last = calendar.at(before(until));
            prop_assert_eq!((last.open, last.until), (hours.open, Some(until)));
            let later = calendar.at(until);
            prop_assert_eq!((later.open, later.since), (!hours.open, Some(until)));
        }
        let spans = calendar.spans(now, now.checked_add(INSTANT).unwrap());
        let span = (hours.since.unwrap_or(Timestamp::MIN), hours.until.unwrap_or(Timestamp::MAX));
        prop_assert_eq!(spans, if hours.open { vec![span] } else { vec![] });
    }

    #[test]
    fn spans_are_apart_in_order_and_touch_what_was_asked_for(policy in any_policy(), from in 0i64..366 * 1440, long in 0i64..40 * 1440) {
        let calendar = policy.read();
        let from = Timestamp::from_second((minutes(policy.year).start + from) * 60).unwrap();
        let to = from.checked_add(SignedDuration::from_mins(long)).unwrap();
        let spans = calendar.spans(from, to);
        prop_assert!(spans.iter().all(|(start, end)| start < end && *start < to && from < *end));
        prop_assert!(spans.is_sorted_by(|one, next| one.1 < next.0));
    }
}
