//! Amounts by resource: what a node has, a pod asks for, a policy allows.
//! It must not know whose amounts they are, and must not cost a pod's row more than a hundred bytes.

mod name;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::de::{self, MapAccess};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::name::ResourceName;
use crate::quantity::{Quantity, QuantityError};

/// Amounts sorted by resource, each resource at most once.
///
/// A resource that is absent counts as zero; one that is present with zero stays present (a node says `gpu: 0`).
/// A boxed slice because thousands of pods hold one: cpu and memory cost 16 + 2 × 32 bytes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Resources(Box<[(ResourceName, Quantity)]>);

/// The first resource of which more is wanted than there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{resource}: {} wanted, {} free", wanted.display(resource.format()), free.display(resource.format()))]
pub struct Shortage {
    /// What is short.
    pub resource: ResourceName,
    /// How much is asked for.
    pub wanted: Quantity,
    /// How much there is.
    pub free: Quantity,
}

/// A resource whose amount cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource {resource}: {source}")]
pub struct ResourceError {
    /// Whose amount it is.
    pub resource: ResourceName,
    /// What is wrong with it.
    pub source: QuantityError,
}

impl ResourceError {
    /// Event reason and metric label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.source.reason()
    }
}

impl Resources {
    /// Nothing at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses pairs of name and amount as in JSON or YAML; the last of two equal names wins.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ResourceError> {
        let parsed: Result<Vec<_>, _> = pairs
            .into_iter()
            .map(|(name, amount)| {
                let resource = ResourceName::from(name);
                match Quantity::parse(amount) {
                    Ok(quantity) => Ok((resource, quantity)),
                    Err(source) => Err(ResourceError { resource, source }),
                }
            })
            .collect();
        Ok(parsed?.into_iter().collect())
    }

    /// The amount of a resource, zero when absent.
    #[must_use]
    pub fn get(&self, name: &ResourceName) -> Quantity {
        self.find(name).map_or(Quantity::ZERO, |at| self.0[at].1)
    }

    /// Whether the resource is named here, even with zero.
    #[must_use]
    pub fn contains(&self, name: &ResourceName) -> bool {
        self.find(name).is_ok()
    }

    /// Whether nothing is named here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets one amount.
    pub fn set(&mut self, name: ResourceName, quantity: Quantity) {
        match self.find(&name) {
            Ok(at) => self.0[at].1 = quantity,
            Err(at) => {
                let mut entries = std::mem::take(&mut self.0).into_vec();
                entries.reserve_exact(1);
                entries.insert(at, (name, quantity));
                self.0 = entries.into_boxed_slice();
            }
        }
    }

    /// All amounts in the order of their names.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&ResourceName, Quantity)> {
        self.0.iter().map(|(name, quantity)| (name, *quantity))
    }

    /// Adds every amount of `other`.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, Quantity::saturating_add);
    }

    /// Subtracts every amount of `other`, never below zero; resources that only `other` names are not added.
    pub fn saturating_sub(&mut self, other: &Self) {
        for (name, quantity) in &mut self.0 {
            *quantity = quantity.saturating_sub(other.get(name)).max(Quantity::ZERO);
        }
    }

    /// Raises every amount to that of `other`.
    pub fn max(&mut self, other: &Self) {
        self.combine(other, Ord::max);
    }

    /// Takes over every amount of `other`; what only `self` names stays.
    pub fn merge(&mut self, other: &Self) {
        self.combine(other, |_, theirs| theirs);
    }

    /// Changes every amount by its name.
    pub fn map(&mut self, mut change: impl FnMut(&ResourceName, Quantity) -> Quantity) {
        for (name, quantity) in &mut self.0 {
            *quantity = change(name, *quantity);
        }
    }

    /// Whether `free` has everything requested here. Only amounts above zero count; what `free` does not name is zero.
    pub fn fits_within(&self, free: &Self) -> Result<(), Shortage> {
        for (name, wanted) in self.iter().filter(|(_, wanted)| wanted.is_positive()) {
            let free = free.get(name);
            if wanted > free {
                return Err(Shortage { resource: name.clone(), wanted, free });
            }
        }
        Ok(())
    }

    fn find(&self, name: &ResourceName) -> Result<usize, usize> {
        self.0.binary_search_by(|(present, _)| present.cmp(name))
    }

    /// Combines with `other`; a resource that only `other` names is taken over as it is.
    fn combine(&mut self, other: &Self, fold: impl Fn(Quantity, Quantity) -> Quantity) {
        let mut absent = 0;
        for (name, theirs) in other.iter() {
            match self.find(name) {
                Ok(at) => self.0[at].1 = fold(self.0[at].1, theirs),
                Err(_) => absent += 1,
            }
        }
        if absent > 0 {
            let mut entries = std::mem::take(&mut self.0).into_vec();
            let known = entries.len();
            entries.reserve_exact(absent);
            for (name, theirs) in other.iter() {
                if entries[..known].binary_search_by(|(present, _)| present.cmp(name)).is_err() {
                    entries.push((name.clone(), theirs));
                }
            }
            entries.sort_unstable_by(|left, right| left.0.cmp(&right.0));
            self.0 = entries.into_boxed_slice();
        }
    }
}

impl FromIterator<(ResourceName, Quantity)> for Resources {
    /// The last of two equal names wins.
    fn from_iter<I: IntoIterator<Item = (ResourceName, Quantity)>>(pairs: I) -> Self {
        let mut entries: Vec<_> = pairs.into_iter().collect();
        // Stable, and reversed, so that dedup keeps the last one given.
        entries.reverse();
        entries.sort_by(|left, right| left.0.cmp(&right.0));
        entries.dedup_by(|later, kept| later.0 == kept.0);
        Self(entries.into_boxed_slice())
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `cpu=250m memory=1Gi`: for messages.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (name, quantity)) in self.iter().enumerate() {
            let gap = if position == 0 { "" } else { " " };
            write!(f, "{gap}{name}={}", quantity.display(name.format()))?;
        }
        Ok(())
    }
}

/// The map Kubernetes uses: `{"cpu":"250m","memory":"1Gi"}`.
impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, quantity) in self.iter() {
            map.serialize_entry(name.as_str(), &format_args!("{}", quantity.display(name.format())))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Resources {
    /// `null` is nothing; a bad amount is an error that names its resource.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Resources;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of resources")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Resources, E> {
                Ok(Resources::new())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Resources, A::Error> {
                let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(2));
                while let Some(name) = map.next_key::<ResourceName>()? {
                    let quantity = map
                        .next_value::<Quantity>()
                        .map_err(|error| de::Error::custom(format_args!("resource {name}: {error}")))?;
                    entries.push((name, quantity));
                }
                Ok(entries.into_iter().collect())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
