//! The name of a resource, with what follows from it: how it is counted and how it is printed.
//! It must not hold amounts.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::names::{NameError, check_qualified_name};
use crate::quantity::{Format, Quantity};

/// A resource. The four that every node has come first and cost no allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceName {
    /// Cores.
    Cpu,
    /// Bytes of memory.
    Memory,
    /// Bytes of local scratch space.
    EphemeralStorage,
    /// How many pods.
    Pods,
    /// Huge pages, devices and everything else a node reports.
    Other(OtherName),
}

/// A name that is none of the well-known four; made by `ResourceName::from`, so that no resource has two spellings.
///
/// One word wide (not the two of an `Arc<str>`), so that an entry of `Resources` takes 32 bytes and not 48.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherName(Arc<Box<str>>);

impl ResourceName {
    /// Reads a name as policies write it: `storage` means `ephemeral-storage`.
    pub fn parse_policy(name: &str) -> Result<Self, NameError> {
        check_qualified_name(name)?;
        Ok(match name {
            "storage" => Self::EphemeralStorage,
            _ => Self::from(name),
        })
    }

    /// The name as Kubernetes spells it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Pods => "pods",
            Self::Other(name) => &name.0,
        }
    }

    /// Whether the API server refuses fractions of it: pods, huge pages, attachable volumes, extended resources.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Pods => true,
            Self::Cpu | Self::Memory | Self::EphemeralStorage => false,
            Self::Other(_) => {
                self.is_hugepages() || self.as_str().starts_with("attachable-volumes-") || self.is_extended()
            }
        }
    }

    /// Whether it is `hugepages-<size>`.
    #[must_use]
    pub fn is_hugepages(&self) -> bool {
        self.as_str().starts_with("hugepages-")
    }

    /// Whether it is an extended resource (`nvidia.com/gpu`): it has a domain, and not one of Kubernetes' own.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        let name = self.as_str();
        name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
    }

    /// Rounded down to what the scheduler can count: thousandths of a core, whole units of all else.
    ///
    /// A finer amount would be worse than useless: the API server rounds it up to thousandths when it stores it,
    /// and the scheduler rounds bytes up, so that more would be lent than was meant.
    #[must_use]
    pub fn floor(&self, quantity: Quantity) -> Quantity {
        match self {
            Self::Cpu => quantity.floor_milli(),
            _ => quantity.floor_whole(),
        }
    }

    /// Rounded up to what the scheduler counts a request as.
    #[must_use]
    pub fn ceil(&self, quantity: Quantity) -> Quantity {
        match self {
            Self::Cpu => quantity.ceil_milli(),
            _ => quantity.ceil_whole(),
        }
    }

    /// How its amounts are printed: bytes in `Ki`, `Mi`, …, all else in decimal.
    #[must_use]
    pub fn format(&self) -> Format {
        match self {
            Self::Memory | Self::EphemeralStorage => Format::BinarySi,
            Self::Other(_) if self.is_hugepages() || self.as_str() == "storage" => Format::BinarySi,
            _ => Format::DecimalSi,
        }
    }
}

impl From<&str> for ResourceName {
    fn from(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::EphemeralStorage,
            "pods" => Self::Pods,
            other => Self::Other(OtherName(Arc::new(other.into()))),
        }
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for OtherName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ResourceName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ResourceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ResourceName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a resource")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<ResourceName, E> {
                Ok(ResourceName::from(name))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}
