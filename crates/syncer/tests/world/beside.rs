//! Two models of one process combined into one: each has its own facts and keys and does not know the other.

use tapestry_cluster::{Answer, Call, Refusal, Side};
use tapestry_engine::{Dirty, Model, Now, Plan, Reason};

/// A fact, key or reason of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Either<L, R> {
    Left(L),
    Right(R),
}

pub(crate) struct Beside<L, R> {
    pub(crate) left: L,
    pub(crate) right: R,
}

impl<L: Reason, R: Reason> Reason for Either<L, R> {
    fn as_str(self) -> &'static str {
        match self {
            Self::Left(why) => why.as_str(),
            Self::Right(why) => why.as_str(),
        }
    }
}

impl<L: Model, R: Model> Model for Beside<L, R> {
    type Key = Either<L::Key, R::Key>;
    type Fact = Either<L::Fact, R::Fact>;
    type Why = Either<L::Why, R::Why>;

    fn observe(&mut self, seen: Self::Fact, now: Now, dirty: &mut Dirty<Self::Key>) {
        match seen {
            Either::Left(seen) => within(dirty, Either::Left, |dirty| self.left.observe(seen, now, dirty)),
            Either::Right(seen) => within(dirty, Either::Right, |dirty| self.right.observe(seen, now, dirty)),
        }
    }

    fn plan(&self, key: &Self::Key, now: Now) -> Plan<Self::Why> {
        match key {
            Either::Left(key) => self.left.plan(key, now).map(Either::Left),
            Either::Right(key) => self.right.plan(key, now).map(Either::Right),
        }
    }

    fn settle(
        &mut self,
        key: &Self::Key,
        why: Self::Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Self::Key>,
    ) {
        match (key, why) {
            (Either::Left(key), Either::Left(why)) => {
                within(dirty, Either::Left, |dirty| self.left.settle(key, why, call, done, now, dirty));
            }
            (Either::Right(key), Either::Right(why)) => {
                within(dirty, Either::Right, |dirty| self.right.settle(key, why, call, done, now, dirty));
            }
            (key, why) => unreachable!("{why:?} was not planned for {key:?}"),
        }
    }

    fn gap(&mut self, now: Now) {
        self.left.gap(now);
        self.right.gap(now);
    }

    fn take_lead(&mut self, now: Now) {
        self.left.take_lead(now);
        self.right.take_lead(now);
    }

    fn keys(&self) -> Vec<Self::Key> {
        let left = self.left.keys().into_iter().map(Either::Left);
        left.chain(self.right.keys().into_iter().map(Either::Right)).collect()
    }

    fn side(&self, key: &Self::Key) -> Option<Side> {
        match key {
            Either::Left(key) => self.left.side(key),
            Either::Right(key) => self.right.side(key),
        }
    }

    fn urgent(key: &Self::Key) -> bool {
        match key {
            Either::Left(key) => L::urgent(key),
            Either::Right(key) => R::urgent(key),
        }
    }
}

fn within<K, E>(dirty: &mut Dirty<E>, wrap: impl Fn(K) -> E, fold: impl FnOnce(&mut Dirty<K>)) {
    let mut own = Dirty::default();
    fold(&mut own);
    dirty.take(own, wrap);
}
