//! The output of the demo: headings, steps, tables, and on a terminal one live line with a spinner while we
//! wait. Must be the only place that writes, and must not fail its callers: the reader may leave at any time.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";
const CLEAR_LINE: &str = "\r\x1b[2K";
const TURNS: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
/// Without a terminal, print progress at most this often.
const SELDOM: Duration = Duration::from_secs(2);

/// The only writer.
pub(super) struct Screen {
    pen: Mutex<Pen>,
    broken: Notify,
}

struct Pen {
    out: Box<dyn Write + Send>,
    terminal: bool,
    begin: Instant,
    /// What we wait for.
    live: String,
    /// When progress was last printed, where there is no live line.
    told: Option<Instant>,
    turn: usize,
    /// Whether the last line is empty.
    blank: bool,
    /// Why nothing can be written any more.
    error: Option<io::Error>,
}

impl Screen {
    /// Colours and the live line only on a terminal.
    pub(super) fn stdout() -> Self {
        let out = io::stdout();
        let terminal = out.is_terminal();
        Self::new(Box::new(out), terminal)
    }

    fn new(out: Box<dyn Write + Send>, terminal: bool) -> Self {
        let pen = Pen {
            out,
            terminal,
            begin: Instant::now(),
            live: String::new(),
            told: None,
            turn: 0,
            blank: false,
            error: None,
        };
        Self { pen: Mutex::new(pen), broken: Notify::new() }
    }

    /// The title of a chapter.
    pub(super) fn heading(&self, text: &str) {
        let begin = if self.pen().blank { "" } else { "\n" };
        self.pen().put(|pen| format!("{begin}{}\n", pen.paint(BOLD, text)), &self.broken);
    }

    /// Something small happened.
    pub(super) fn note(&self, text: &str) {
        self.pen().put(|pen| format!("  {}\n", pen.paint(DIM, &pen.stamped(text))), &self.broken);
    }

    /// A wait has ended, after `took`.
    pub(super) fn done(&self, text: &str, took: Duration) {
        let mut pen = self.pen();
        pen.live.clear();
        let took = format!("{:.1} s", took.as_secs_f32());
        pen.put(|pen| format!("  {} {text:<70} {took:>8}\n", pen.paint(GREEN, pen.tick())), &self.broken);
    }

    /// Plain text, as it is.
    pub(super) fn text(&self, text: &str) {
        self.pen().put(|_| format!("{text}\n"), &self.broken);
    }

    /// A table with aligned columns, indented; the first row is the heading.
    pub(super) fn table(&self, rows: &[Vec<String>]) {
        let lines = align(rows);
        let draw = |pen: &Pen| {
            let heading = |(index, line): (usize, String)| if index == 0 { pen.paint(BOLD, &line) } else { line };
            let lines: Vec<_> = lines.into_iter().enumerate().map(heading).collect();
            format!("\n    {}\n\n", lines.join("\n    "))
        };
        self.pen().put(draw, &self.broken);
    }

    /// Aligned columns without a heading.
    pub(super) fn list(&self, rows: &[Vec<String>]) {
        self.pen().put(|_| format!("\n    {}\n\n", align(rows).join("\n    ")), &self.broken);
    }

    /// The progress of a wait. Ends with the next [`Self::done`].
    pub(super) fn live(&self, text: &str) {
        let mut pen = self.pen();
        if pen.live == text {
            return;
        }
        text.clone_into(&mut pen.live);
        if pen.terminal {
            pen.put(|_| String::new(), &self.broken);
        } else if pen.told.is_none_or(|told| told.elapsed() >= SELDOM) {
            pen.told = Some(Instant::now());
            pen.put(|pen| format!("  {}\n", pen.stamped(text)), &self.broken);
        }
    }

    /// Removes the live line: the wait is over.
    pub(super) fn end(&self) {
        let mut pen = self.pen();
        if !pen.live.is_empty() {
            pen.live.clear();
            pen.put(|_| String::new(), &self.broken);
        }
    }

    /// Turns the spinner of the live line until dropped.
    pub(super) async fn spin(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mut pen = self.pen();
            if pen.terminal && !pen.live.is_empty() {
                pen.turn += 1;
                pen.put(|_| String::new(), &self.broken);
            }
        }
    }

    /// Returns when nothing can be written any more.
    pub(super) async fn broken(&self) -> io::Error {
        self.broken.notified().await;
        self.pen().error.take().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    fn pen(&self) -> MutexGuard<'_, Pen> {
        self.pen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pen {
    /// Writes `text` above the live line.
    fn put(&mut self, text: impl FnOnce(&Self) -> String, broken: &Notify) {
        let mut text = text(self);
        if !text.is_empty() {
            self.blank = text.ends_with("\n\n");
        }
        if self.terminal {
            text.insert_str(0, CLEAR_LINE);
            if !self.live.is_empty() {
                let turn = self.paint(GREEN, &TURNS[self.turn % TURNS.len()].to_string());
                text = format!("{text}  {turn} {}", self.live);
            }
        }
        if let Err(error) = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            self.error = Some(error);
            broken.notify_one();
        }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.terminal { format!("{colour}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn tick(&self) -> &'static str {
        if self.terminal { "✓" } else { "-" }
    }

    fn stamped(&self, text: &str) -> String {
        format!("{:6.1}s  {text}", self.begin.elapsed().as_secs_f32())
    }
}

/// Pads every column to its widest cell.
fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `[######----]`, twenty wide.
pub(super) fn bar(done: usize, of: usize) -> String {
    let full = (20 * done.min(of)).checked_div(of).unwrap_or(20);
    format!("[{}{}]", "#".repeat(full), "-".repeat(20 - full))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Torn;

    impl Write for Torn {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn seen(terminal: bool) -> String {
        let paper = Paper::default();
        let screen = Screen::new(Box::new(paper.clone()), terminal);
        screen.live("1 of 2");
        screen.live("2 of 2");
        screen.done("both", Duration::from_millis(1234));
        screen.table(&[vec!["a".into(), "b".into()], vec!["wide".into(), "c".into()]]);
        String::from_utf8(paper.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn without_a_terminal_there_are_only_plain_lines() {
        let seen = seen(false);
        assert!(seen.chars().all(|c| c == '\n' || (' '..='~').contains(&c)), "{seen:?}");
        // Told of progress once: the second time came too soon.
        assert!(seen.contains("1 of 2") && !seen.contains("2 of 2"), "{seen:?}");
        assert!(seen.ends_with("1.2 s\n\n    a     b\n    wide  c\n\n"), "{seen:?}");
    }

    #[test]
    fn on_a_terminal_the_live_line_is_overwritten() {
        let seen = seen(true);
        assert!(seen.contains("1 of 2\r\x1b[2K"), "{seen:?}");
        assert!(seen.contains("2 of 2\r\x1b[2K"), "{seen:?}");
    }

    #[tokio::test]
    async fn a_reader_who_leaves_is_noticed() {
        let screen = Screen::new(Box::new(Torn), false);
        screen.text("hello");
        assert_eq!(screen.broken().await.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_bar_is_full_when_all_is_done() {
        assert_eq!(bar(0, 40), format!("[{}]", "-".repeat(20)));
        assert_eq!(bar(10, 40), format!("[{}{}]", "#".repeat(5), "-".repeat(15)));
        assert_eq!(bar(40, 40), format!("[{}]", "#".repeat(20)));
        assert_eq!(bar(0, 0), format!("[{}]", "#".repeat(20)));
    }
}
