//! Parses a calendar as users write it and says what is wrong with it.
//! It must not guess: `7:00`, `Mo` or `CEST` are refused, each with what to write instead.

use std::str::FromStr;

use jiff::civil::{Date, Time};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::Calendar;
use super::window::{Days, Window};
use crate::excerpt::excerpt;

/// One window as users write it.
#[derive(Debug, Clone, Copy)]
pub struct WindowText<'a> {
    /// `HH:MM`, 00:00 to 23:59.
    pub start: &'a str,
    /// `HH:MM`, 00:00 to 24:00; not after the start: on the next day.
    pub end: &'a str,
    /// On which days it starts: English names, full or three letters, in any case. None: every day.
    pub days: &'a [String],
    /// An IANA time zone; `None`: the policy's.
    pub zone: Option<&'a str>,
}

/// What is wrong with a field, and what to write instead: the rest of a sentence that starts with the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// A start that no clock shows.
    #[error("is `{0}`: give HH:MM from 00:00 to 23:59, two digits each, such as `07:00`")]
    Start(Box<str>),
    /// A start at the end of the day.
    #[error("is `24:00`, which only an end can be: give `00:00` of the next day")]
    StartAtEndOfDay,
    /// An end that no clock shows.
    #[error("is `{0}`: give HH:MM from 00:00 to 24:00, two digits each, such as `07:00`")]
    End(Box<str>),
    /// Not the name of a day.
    #[error("is `{0}`, which is no day of the week: give an English name such as `Monday` or `Mon`")]
    Day(Box<str>),
    /// Not the name of a time zone.
    #[error(
        "is `{0}`, which is no IANA time zone: give a name such as `Europe/Berlin`, `Asia/Shanghai` or `UTC`, not an \
         abbreviation or an offset"
    )]
    Zone(Box<str>),
    /// Not a date, or one that no calendar has.
    #[error("is `{0}`, which is no date: give a day that exists as YYYY-MM-DD, such as `2026-12-24`")]
    Date(Box<str>),
}

impl CalendarError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Start(_) | Self::StartAtEndOfDay => "InvalidWindowStart",
            Self::End(_) => "InvalidWindowEnd",
            Self::Day(_) => "InvalidDay",
            Self::Zone(_) => "UnknownTimeZone",
            Self::Date(_) => "InvalidDate",
        }
    }
}

pub(super) fn parse(
    windows: &[WindowText<'_>],
    zone: Option<&str>,
    except: &[String],
) -> Result<Calendar, Vec<(String, CalendarError)>> {
    let mut problems = Problems::default();
    let zone = zone.map_or(Ok(TimeZone::UTC), parse_zone);
    // Report a bad zone of the policy once, below, and not for each window that would use it.
    let usual = zone.clone().unwrap_or(TimeZone::UTC);
    let read = windows.iter().enumerate();
    let mut read: Vec<_> = read.filter_map(|(i, text)| parse_window(i, text, &usual, &mut problems)).collect();
    problems.keep(|| "timeZone".into(), zone);
    let dates = except.iter().enumerate();
    let mut dates: Vec<_> =
        dates.filter_map(|(i, text)| problems.keep(|| format!("exceptDates[{i}]"), parse_date(text))).collect();
    dates.sort_unstable();
    dates.dedup();
    if read.is_empty() && !dates.is_empty() {
        read.push(Window::every_day(usual));
    }
    if problems.0.is_empty() { Ok(Calendar { windows: read.into(), except: dates.into() }) } else { Err(problems.0) }
}

fn parse_window(i: usize, text: &WindowText<'_>, usual: &TimeZone, problems: &mut Problems) -> Option<Window> {
    let field = |name: &str| format!("timeWindows[{i}].{name}");
    let start = problems.keep(|| field("start"), parse_start(text.start));
    let end = problems.keep(|| field("end"), parse_end(text.end));
    let mut days = if text.days.is_empty() { Days::EVERY } else { Days::NONE };
    for (day, name) in text.days.iter().enumerate() {
        let read = Days::parse(name).ok_or_else(|| CalendarError::Day(excerpt(name)));
        days = problems.keep(|| field(&format!("days[{day}]")), read).map_or(days, |day| days.and(day));
    }
    let zone = text.zone.map_or_else(|| Ok(usual.clone()), parse_zone);
    let zone = problems.keep(|| field("timeZone"), zone);
    Some(Window::new(days, start?, end?, zone?))
}

fn parse_start(text: &str) -> Result<Time, CalendarError> {
    match text {
        "24:00" => Err(CalendarError::StartAtEndOfDay),
        _ => parse_time(text).ok_or_else(|| CalendarError::Start(excerpt(text))),
    }
}

/// The end of the day is midnight, which is never after the start and so always on the next day.
fn parse_end(text: &str) -> Result<Time, CalendarError> {
    match text {
        "24:00" => Ok(Time::midnight()),
        _ => parse_time(text).ok_or_else(|| CalendarError::End(excerpt(text))),
    }
}

fn parse_time(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    Time::new(number(hour, 2)?, number(minute, 2)?, 0, 0).ok()
}

/// From the zones in the binary, whatever the machine has: the same policy means the same hours everywhere.
fn parse_zone(name: &str) -> Result<TimeZone, CalendarError> {
    // `Etc/Unknown` is known to jiff but is no zone.
    let zone = TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown());
    zone.ok_or_else(|| CalendarError::Zone(excerpt(name)))
}

fn parse_date(text: &str) -> Result<Date, CalendarError> {
    let read = || {
        let (year, rest) = text.split_once('-')?;
        let (month, day) = rest.split_once('-')?;
        Date::new(number(year, 4)?, number(month, 2)?, number(day, 2)?).ok()
    };
    read().ok_or_else(|| CalendarError::Date(excerpt(text)))
}

/// A number of exactly so many digits, without sign.
fn number<T: FromStr>(text: &str, digits: usize) -> Option<T> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Collects problems, so that all of them are reported at once.
#[derive(Default)]
struct Problems(Vec<(String, CalendarError)>);

impl Problems {
    fn keep<T>(&mut self, field: impl FnOnce() -> String, read: Result<T, CalendarError>) -> Option<T> {
        read.map_err(|problem| self.0.push((field(), problem))).ok()
    }
}
