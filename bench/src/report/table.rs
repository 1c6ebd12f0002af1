//! A table that is Markdown and, because its columns are aligned, also fits for a terminal. Knows no figure.

use std::fmt::Write as _;

/// Columns of text; numbers are for the caller to format.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(super) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row; missing cells are empty.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// One line per row.
    pub(super) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                // Writing to a String cannot fail.
                let _ = write!(text, "| {cell:<width$} ");
            }
            text.push_str("|\n");
            if index == 0 {
                for width in &widths {
                    let _ = write!(text, "|{}", "-".repeat(width + 2));
                }
                text.push_str("|\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["who", "÷"]);
        table.row(["a".to_owned(), "1.5×".to_owned()]);
        table.row(["longer".to_owned()]);
        let expected = "| who    | ÷    |\n|--------|------|\n| a      | 1.5× |\n| longer |      |\n";
        assert_eq!(table.render(), expected);
    }
}
