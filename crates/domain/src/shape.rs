//! Pieces for slim structs that are read straight from an API server's JSON, borrowing what they can.
//! It must not be stricter than the API server: `null` means the same as an absent field.

use std::borrow::Cow;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};

/// A string that borrows from the JSON text when it holds no escapes.
///
/// A type of its own because serde borrows a bare `Cow` field but not a `Cow` inside an `Option` or `Vec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    /// The same text, free of the JSON it was read from.
    #[must_use]
    pub fn into_owned(self) -> Text<'static> {
        Text(Cow::Owned(self.0.into_owned()))
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Deref for Text<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// Parses a field where `null` means the default, as in Go's decoder.
pub(crate) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_borrows_unless_it_is_escaped() {
        let texts: Vec<Text<'_>> = serde_json::from_str(r#"["plain", "esc\u0061ped"]"#).unwrap();
        assert!(matches!(texts[0].0, Cow::Borrowed("plain")));
        assert_eq!(&*texts[1], "escaped");
    }
}
