//! When a policy lends: recurring windows of wall-clock time, without the excepted dates.
//! It must not read the clock or the system's time zones: the moment is an input, the zones are in the binary.

mod parse;
#[cfg(test)]
mod tests;
mod window;

use std::iter;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

pub use self::parse::{CalendarError, WindowText};
use self::window::{Span, Window};

/// How far an unbroken opening is followed. A pattern that repeats every year shows within that time.
const HORIZON: SignedDuration = SignedDuration::from_hours(400 * 24);
/// Clocks differ from UTC by 14 hours at most, today; two days are enough for a date in any zone.
const ZONES: SignedDuration = SignedDuration::from_hours(2 * 24);
/// A window ends on the day after the one it starts on, at the latest.
const LONGEST: SignedDuration = SignedDuration::from_hours(2 * 24);

/// When a policy lends.
#[derive(Debug, Clone, PartialEq)]
pub struct Calendar {
    /// Any of them is enough; none at all means always, and then nothing is excepted.
    windows: Box<[Window]>,
    /// Sorted. A window does not open on such a date of its own zone.
    except: Box<[Date]>,
}

/// Whether the policy lends at a moment, and how long that stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    /// Whether a window is open. Its end is no longer inside.
    pub open: bool,
    /// When this state began; `None` when it began more than 400 days ago, or never.
    pub since: Option<Timestamp>,
    /// When this state ends; `None` when that never happens.
    pub until: Option<Timestamp>,
}

impl Hours {
    /// Whether they cover this moment too, so that the calendar need not be asked again.
    #[must_use]
    pub fn covers(&self, now: Timestamp) -> bool {
        self.since.is_none_or(|since| since <= now) && self.until.is_none_or(|until| now < until)
    }
}

impl Calendar {
    /// Lending at all times.
    #[must_use]
    pub fn always() -> Self {
        Self { windows: Box::default(), except: Box::default() }
    }

    /// Parses what users write; `zone` applies to windows without their own, and without windows to `except`.
    /// Returns all problems at once, in the order of the fields, each with its path below
    /// `spec`.
    pub fn parse(
        windows: &[WindowText<'_>],
        zone: Option<&str>,
        except: &[String],
    ) -> Result<Self, Vec<(String, CalendarError)>> {
        parse::parse(windows, zone, except)
    }

    /// Whether there are neither windows nor excepted dates.
    #[must_use]
    pub fn is_always(&self) -> bool {
        self.windows.is_empty()
    }

    /// The state at a moment and how long it lasts.
    #[must_use]
    pub fn at(&self, now: Timestamp) -> Hours {
        let open = self.is_open(now);
        let since = if open { self.opened(now) } else { self.closed(now) };
        Hours { open, since, until: self.edge_after(now, open) }
    }

    /// All times of lending that touch `[from, to)`, each from its true beginning to its true end, merged and sorted.
    /// One without a known beginning or end goes from `Timestamp::MIN` or to `Timestamp::MAX`.
    #[must_use]
    pub fn spans(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Timestamp)> {
        let mut spans = Vec::new();
        if from >= to {
            return spans;
        }
        let mut hours = self.at(from);
        loop {
            if hours.open {
                spans.push((hours.since.unwrap_or(Timestamp::MIN), hours.until.unwrap_or(Timestamp::MAX)));
            }
            let Some(edge) = hours.until.filter(|edge| *edge < to) else { return spans };
            hours = Hours { open: !hours.open, since: Some(edge), until: self.edge_after(edge, !hours.open) };
        }
    }

    fn is_open(&self, now: Timestamp) -> bool {
        self.is_always() || self.windows.iter().filter_map(|window| self.begun(window, now)).any(|(_, end)| now < end)
    }

    fn edge_after(&self, now: Timestamp, open: bool) -> Option<Timestamp> {
        if open { self.closes(now) } else { self.opens(now) }
    }

    /// When the current pause ends: the next start.
    fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        let starts = self
            .windows
            .iter()
            .filter_map(|window| self.coming(window, now).map(|(start, _)| start).find(|start| *start > now));
        starts.min()
    }

    /// When the current pause began: the last end.
    fn closed(&self, now: Timestamp) -> Option<Timestamp> {
        self.windows.iter().filter_map(|window| self.begun(window, now)).map(|(_, end)| end).max()
    }

    /// When the current opening began: back from span to span as long as they touch.
    fn opened(&self, now: Timestamp) -> Option<Timestamp> {
        let far = now.checked_sub(HORIZON).unwrap_or(Timestamp::MIN);
        let before = self.windows.iter().map(|window| self.latest(window, now).peekable());
        let mut before: Vec<_> = before.collect();
        let (mut edge, mut last) = (now, None);
        while last != Some(edge) {
            last = Some(edge);
            for spans in &mut before {
                while let Some((start, _)) = spans.next_if(|(_, end)| *end >= edge && edge >= far) {
                    edge = edge.min(start);
                }
            }
        }
        (!before.is_empty() && edge >= far).then_some(edge)
    }

    /// When the current opening ends.
    fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        let (mut from, mut look) = (now, HORIZON);
        if self.is_always() {
            return None;
        }
        loop {
            let far = from.checked_add(look).unwrap_or(Timestamp::MAX);
            let edge = self.reach(from, far);
            if edge <= far {
                return Some(edge);
            }
            // Only an excepted date can still break such a long opening.
            from = self.next_exception(edge)?.max(edge);
            look = ZONES + LONGEST + ZONES;
            if from > edge && !self.is_open(from) {
                return None;
            }
        }
    }

    /// When the opening at a moment ends: on from span to span as long as they touch, or past `far`.
    fn reach(&self, from: Timestamp, far: Timestamp) -> Timestamp {
        let mut ahead: Vec<_> = self.windows.iter().map(|window| self.coming(window, from).peekable()).collect();
        let (mut edge, mut last) = (from, None);
        while last != Some(edge) {
            last = Some(edge);
            for spans in &mut ahead {
                while let Some((_, end)) = spans.next_if(|(start, _)| *start <= edge && edge <= far) {
                    edge = edge.max(end);
                }
            }
        }
        edge
    }

    /// The spans of a window in order, from the one that may have begun yesterday.
    fn coming(&self, window: &Window, now: Timestamp) -> impl Iterator<Item = Span> {
        let dates = iter::successors(window.date_of(now).yesterday().ok(), |date| date.tomorrow().ok());
        dates.filter_map(|date| self.span(window, date))
    }

    /// The spans of a window that have begun, the latest first; with clocks set back over midnight it can be tomorrow's.
    fn latest(&self, window: &Window, now: Timestamp) -> impl Iterator<Item = Span> {
        let dates = iter::successors(window.date_of(now).tomorrow().ok(), |date| date.yesterday().ok());
        dates.filter_map(|date| self.span(window, date)).skip_while(move |(start, _)| *start > now)
    }

    /// The last span of a window that has begun. No other of its spans can be open then: they do not overlap.
    fn begun(&self, window: &Window, now: Timestamp) -> Option<Span> {
        self.latest(window, now).next()
    }

    /// From when to when a window is open that starts on this date of its zone.
    fn span(&self, window: &Window, date: Date) -> Option<Span> {
        if self.except.binary_search(&date).is_ok() { None } else { window.on(date) }
    }

    /// From when on the next excepted date can matter, in any zone; in the past when one matters already.
    fn next_exception(&self, moment: Timestamp) -> Option<Timestamp> {
        let mut midnights = self.except.iter().filter_map(|date| TimeZone::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok());
        let over = moment.checked_sub(ZONES + LONGEST).ok()?;
        midnights.find(|midnight| *midnight > over)?.checked_sub(ZONES).ok()
    }
}
