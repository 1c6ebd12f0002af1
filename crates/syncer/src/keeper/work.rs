//! State of the syncer, as reported to the keeper. Decides nothing.

/// State of the syncer that runs beside the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Work {
    /// It is still reading the initial lists.
    #[default]
    Starts,
    /// It has read all lists and works.
    Goes,
    /// It cannot work.
    Stopped(Trouble),
}

impl Work {
    /// A new life begins; says whether that is news.
    pub(crate) fn start(&mut self) -> bool {
        self.become_now(Self::Starts)
    }

    /// Everything is read; says whether that is news.
    pub(crate) fn go(&mut self) -> bool {
        self.become_now(Self::Goes)
    }

    fn become_now(&mut self, now: Self) -> bool {
        let news = *self != now;
        *self = now;
        news
    }

    /// Whether it is stopped because of this.
    pub(crate) fn stopped_for(&self, trouble: &Trouble) -> bool {
        matches!(self, Self::Stopped(known) if known == trouble)
    }
}

/// What is wrong, for the binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// `PascalCase`, for the condition.
    pub reason: &'static str,
    /// What happened and what to do.
    pub message: String,
    /// The generation of the binding that it was found in; `None` when it holds whatever the binding says.
    pub generation: Option<i64>,
}
