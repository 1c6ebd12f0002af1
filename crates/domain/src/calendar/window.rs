//! One window: on which days it starts, from when to when by the clocks of its zone.
//! It must not know of other windows or of excepted dates.

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};

/// From the first moment inside to the first moment after.
pub(super) type Span = (Timestamp, Timestamp);

/// A recurring span of wall-clock time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    days: Days,
    start: Time,
    /// On the same day when it is after `start`, else on the next: so midnight is the end of the day, and an end that
    /// is the start makes a whole day.
    end: Time,
    zone: TimeZone,
}

/// Days of the week, Monday in the lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Days(u8);

const NAMES: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

impl Days {
    pub(super) const NONE: Self = Self(0);
    pub(super) const EVERY: Self = Self(0b111_1111);

    /// One day by its English name, full or three letters, in any case.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let is = |full: &&str| name.eq_ignore_ascii_case(full) || name.eq_ignore_ascii_case(&full[..3]);
        NAMES.iter().position(is).map(|position| Self(1 << position))
    }

    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn contains(self, date: Date) -> bool {
        self.0 & (1 << date.weekday().to_monday_zero_offset()) != 0
    }
}

impl Window {
    pub(super) fn new(days: Days, start: Time, end: Time, zone: TimeZone) -> Self {
        Self { days, start, end, zone }
    }

    /// Always open, but in pieces of a day that can be excepted.
    pub(super) fn every_day(zone: TimeZone) -> Self {
        Self::new(Days::EVERY, Time::midnight(), Time::midnight(), zone)
    }

    /// The local date at a moment.
    pub(super) fn date_of(&self, moment: Timestamp) -> Date {
        self.zone.to_datetime(moment).date()
    }

    /// From when to when it is open if it starts on this date; `None` when it does not start then, when the clocks skip
    /// it whole, or where the calendar ends.
    ///
    /// INVARIANT: `a_later_date_never_gives_an_earlier_start_or_end`: the searches of the calendar depend on it.
    pub(super) fn on(&self, date: Date) -> Option<Span> {
        if !self.days.contains(date) {
            return None;
        }
        let last = if self.end <= self.start { date.tomorrow().ok()? } else { date };
        let (start, end) = (self.moment(date, self.start)?, self.moment(last, self.end)?);
        (start < end).then_some((start, end))
    }

    /// When the clocks first show this time or, where they skip it, first show a later one.
    fn moment(&self, date: Date, time: Time) -> Option<Timestamp> {
        let wall = date.to_datetime(time);
        match self.zone.to_ambiguous_timestamp(wall).offset() {
            AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
                offset.to_timestamp(wall).ok()
            }
            // jiff's own way would keep the distance to the gap's start: 02:30 becomes 03:30, not 03:00. Read with the
            // new offset a skipped time lies before the change, so the change is the next one.
            AmbiguousOffset::Gap { after, .. } => {
                let mut changes = self.zone.following(after.to_timestamp(wall).ok()?);
                changes.find(|change| change.offset() == after).map(|change| change.timestamp())
            }
        }
    }
}
