//! Two models of one process beside each other, as one: each has its own facts and keys and knows nothing of the other.

use tapestry_cluster::{Answer, Call, Refusal, Side};
use tapestry_engine::{Dirty, Model, Now, Plan};

/// A fact or key of one of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Either<L, R> {
    Left(L),
    Right(R),
}

pub(crate) struct Beside<L, R> {
    pub(crate) left: L,
    pub(crate) right: R,
}

impl<L: Model, R: Model> Model for Beside<L, R> {
    type Key = Either<L::Key, R::Key>;
    type Fact = Either<L::Fact, R::Fact>;

    fn observe(&mut self, seen: Self::Fact, now: Now, dirty: &mut Dirty<Self::Key>) {
        match seen {
            Either::Left(seen) => within(dirty, Either::Left, |dirty| self.left.observe(seen, now, dirty)),
            Either::Right(seen) => within(dirty, Either::Right, |dirty| self.right.observe(seen, now, dirty)),
        }
    }

    fn plan(&self, key: &Self::Key, now: Now) -> Plan {
        match key {
            Either::Left(key) => self.left.plan(key, now),
            Either::Right(key) => self.right.plan(key, now),
        }
    }

    fn settle(
        &mut self,
        key: &Self::Key,
        call: &Call,
        done: Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Self::Key>,
    ) {
        match key {
            Either::Left(key) => within(dirty, Either::Left, |dirty| self.left.settle(key, call, done, now, dirty)),
            Either::Right(key) => within(dirty, Either::Right, |dirty| self.right.settle(key, call, done, now, dirty)),
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
