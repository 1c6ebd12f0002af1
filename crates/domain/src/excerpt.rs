//! Cuts text from outside to a length that is safe to repeat in an error, event or condition, and escapes control characters.
//! It must not be used for comparisons: an excerpt is for messages only.

/// Longer texts are cut: an annotation may hold 256 KiB and must not come back in an event.
const LIMIT: usize = 80;

/// The beginning of `text` on one line, with `…` when something was cut away.
pub(crate) fn excerpt(text: &str) -> Box<str> {
    let (text, cut) = cut(text);
    let mut excerpt = String::with_capacity(text.len() + cut.len());
    for character in text.chars() {
        if character.is_control() {
            excerpt.extend(character.escape_default());
        } else {
            excerpt.push(character);
        }
    }
    (excerpt + cut).into()
}

/// The beginning of `text` as it is, for those who escape it themselves; and `…` when something was cut away.
pub(crate) fn cut(text: &str) -> (&str, &'static str) {
    text.char_indices().nth(LIMIT).map_or((text, ""), |(end, _)| (&text[..end], "…"))
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

    #[test]
    fn a_line_break_or_an_escape_sequence_is_shown_and_has_no_effect() {
        assert_eq!(&*excerpt("a\nb\u{1b}[2J"), r"a\nb\u{1b}[2J");
    }
}
