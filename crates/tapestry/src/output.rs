//! How commands print: tables that fit a terminal, JSON, YAML. Knows no command.

use std::io::Write as _;

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// `-o`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For reading
    Text,
    Json,
    Yaml,
}

/// Prints a value as JSON or YAML, or as the text that `render` makes of it.
pub(crate) fn print<T: Serialize>(output: Output, value: &T, render: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new("cannot print", error, "");
    let text = match output {
        Output::Text => render(value),
        Output::Json => serde_json::to_string_pretty(value).map_err(|error| failed(&error))? + "\n",
        Output::Yaml => serde_saphyr::to_string(value).map_err(|error| failed(&error))?,
    };
    // Serializers escape only some control characters, and a renderer may forget one: none passes here.
    say(&text.split('\n').map(plain).collect::<Vec<_>>().join("\n"))
}

/// A text from outside on one line, without terminal control: line breaks become spaces, other control characters and those
/// that change the direction of writing become `\u{fffd}`.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut after_return = false;
    for character in text.chars() {
        match character {
            '\n' if after_return => {}
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => plain.push(' '),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                plain.push(char::REPLACEMENT_CHARACTER);
            }
            control if control.is_control() => plain.push(char::REPLACEMENT_CHARACTER),
            character => plain.push(character),
        }
        after_return = character == '\r';
    }
    plain
}

/// Prints a text; a closed pipe is no error, because there is no reader.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Columns as wide as their widest cell, two spaces between them; the last one is not padded.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| plain(cell))).collect();
    let mut widths = header.map(|cell| cell.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let body = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(header)).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_in_a_cell_is_a_space_and_starts_no_row() {
        let rows = [["east\nwest".to_owned(), "\u{1b}]0;x\u{7}4".to_owned()]];
        assert_eq!(table(["BINDING", "CPU"], &rows), "BINDING    CPU\neast west  \u{fffd}]0;x\u{fffd}4\n");
    }

    #[test]
    fn columns_line_up_and_no_line_ends_with_spaces() {
        let rows = [["cpu".to_owned(), "4".to_owned()], ["ephemeral-storage".to_owned(), String::new()]];
        assert_eq!(
            table(["RESOURCE", "IDLE"], &rows),
            "RESOURCE           IDLE\ncpu                4\nephemeral-storage\n"
        );
    }
}
