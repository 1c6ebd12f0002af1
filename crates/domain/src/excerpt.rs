//! Cuts text from outside to a length that is safe to repeat in an error, event or condition.
//! It must not be used for comparisons: an excerpt is for messages only.

/// Longer texts are cut: an annotation may hold 256 KiB and must not come back in an event.
const LIMIT: usize = 80;

/// The beginning of `text`, with `…` when something was cut away.
pub(crate) fn excerpt(text: &str) -> Box<str> {
    match text.char_indices().nth(LIMIT) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_is_kept_and_long_text_is_cut_between_characters() {
        assert_eq!(&*excerpt("web"), "web");
        let cut = excerpt(&"ä".repeat(1000));
        assert_eq!(cut.chars().count(), LIMIT + 1);
        assert!(cut.ends_with('…'));
    }
}
