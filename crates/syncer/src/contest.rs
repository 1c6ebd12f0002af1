//! How often another client changed what is ours, and we changed it back. Two that both insist would write without end.

use std::time::Duration;

/// What another client changes so often in this time is not changed back any more.
const REVERTS: usize = 3;
const REVERTS_WITHIN: Duration = Duration::from_mins(10);

/// When something was changed back.
#[derive(Debug, Default)]
pub(crate) struct Contest(Vec<Duration>);

impl Contest {
    /// Another client changed it, and we changed it back. True when that is once too often.
    pub(crate) fn count(&mut self, at: Duration) -> bool {
        self.0.retain(|then| *then + REVERTS_WITHIN > at);
        self.0.push(at);
        self.0.len() >= REVERTS
    }

    /// Until when it is left alone; `None` when it may be changed back.
    pub(crate) fn until(&self, now: Duration) -> Option<Duration> {
        let oldest = *self.0.len().checked_sub(REVERTS).and_then(|first| self.0.get(first))?;
        Some(oldest + REVERTS_WITHIN).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_three_reverts_in_ten_minutes_it_is_left_alone_for_the_rest_of_them() {
        let minutes = Duration::from_mins;
        let mut contest = Contest::default();
        assert!(!contest.count(minutes(1)) && !contest.count(minutes(2)));
        assert_eq!(contest.until(minutes(3)), None);
        assert!(contest.count(minutes(3)));
        assert_eq!(contest.until(minutes(4)), Some(minutes(11)));
        assert_eq!(contest.until(minutes(11)), None);
        assert!(!contest.count(minutes(13)), "those of long ago do not count");
    }
}
