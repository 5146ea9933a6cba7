// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Channels and their traffic, again and again.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, Table};
use ratatui::{DefaultTerminal, Frame};

use crate::table::{self, plural, short};

/// How a channel stands, for those who look at many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// it carries what there is
    Up,
    /// something is wrong with it
    Fault,
    /// it comes, goes, or rests
    #[default]
    Other,
}

/// A channel: counters since it began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// who
    pub name: String,
    /// of the channel, in a word
    pub state: String,
    /// what that word means
    pub standing: Standing,
    /// bytes from the first to the second; in a guest, sent
    pub out_bytes: u64,
    /// frames likewise
    pub out_frames: u64,
    /// bytes the other way; in a guest, received
    pub in_bytes: u64,
    /// frames likewise
    pub in_frames: u64,
    /// rung and heard
    pub doorbells: u64,
    /// frames
    pub dropped: u64,
}

/// What happened per second.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rates {
    name: String,
    state: String,
    standing: Standing,
    out_bits: f64,
    out_frames: f64,
    in_bits: f64,
    in_frames: f64,
    doorbells: f64,
    dropped: u64,
}

/// Compares looks.
#[derive(Default)]
struct Meter {
    before: HashMap<String, (Row, Instant)>,
}

impl Meter {
    /// Rates since the look before, the busiest first.
    fn look(&mut self, rows: Vec<Row>, now: Instant) -> Vec<Rates> {
        let mut after = HashMap::new();
        let mut rates: Vec<Rates> = rows
            .into_iter()
            .map(|row| {
                let (before, then) =
                    self.before.remove(&row.name).unwrap_or_else(|| (row.clone(), now));
                let seconds = now.saturating_duration_since(then).as_secs_f64();
                // Counters begin anew with a new channel.
                let rate = |new: u64, old: u64| {
                    if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 }
                };
                let rates = Rates {
                    name: row.name.clone(),
                    state: row.state.clone(),
                    standing: row.standing,
                    out_bits: 8.0 * rate(row.out_bytes, before.out_bytes),
                    out_frames: rate(row.out_frames, before.out_frames),
                    in_bits: 8.0 * rate(row.in_bytes, before.in_bytes),
                    in_frames: rate(row.in_frames, before.in_frames),
                    doorbells: rate(row.doorbells, before.doorbells),
                    dropped: row.dropped,
                };
                after.insert(row.name.clone(), (row, now));
                rates
            })
            .collect();
        self.before = after;
        rates.sort_by(|a, b| (b.out_bits + b.in_bits).total_cmp(&(a.out_bits + a.in_bits)));
        rates
    }
}

const HEADINGS: [&str; 8] =
    ["CHANNEL", "STATE", "> bit/s", "> frame/s", "< bit/s", "< frame/s", "DOORBELL/s", "DROPPED"];

fn cells(rates: &Rates) -> [String; 8] {
    [
        rates.name.clone(),
        rates.state.clone(),
        short(rates.out_bits),
        short(rates.out_frames),
        short(rates.in_bits),
        short(rates.in_frames),
        short(rates.doorbells),
        rates.dropped.to_string(),
    ]
}

/// Looks every `interval` seconds, `batch` times as plain text, or for ever on
/// the terminal.
///
/// # Errors
/// Those of `look` and of the terminal.
pub fn run(
    interval: f64,
    batch: Option<u64>,
    look: &mut dyn FnMut() -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(interval);
    if let Some(count) = batch {
        return plain(interval, count, look);
    }
    anyhow::ensure!(
        io::stdout().is_terminal(),
        "this is no terminal\n  for plain text: vmloop top --batch COUNT"
    );
    // The first look must work before the terminal changes.
    let first = look()?;
    let mut terminal = ratatui::try_init()?;
    let result = draw_all(&mut terminal, interval, first, look);
    ratatui::restore();
    result
}

fn plain(
    interval: Duration,
    count: u64,
    look: &mut dyn FnMut() -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<()> {
    let mut meter = Meter::default();
    meter.look(look()?, Instant::now());
    for _ in 0..count {
        std::thread::sleep(interval);
        let mut text = table::Table::new(&HEADINGS);
        for rates in meter.look(look()?, Instant::now()) {
            text.row(cells(&rates));
        }
        let out = &mut io::stdout().lock();
        text.write(out)?;
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

fn draw_all(
    terminal: &mut DefaultTerminal,
    interval: Duration,
    first: Vec<Row>,
    look: &mut dyn FnMut() -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<()> {
    let mut meter = Meter::default();
    let mut rates = meter.look(first, Instant::now());
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw(frame, &rates, interval))?;
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait)? {
            if let Event::Key(key) = event::read()? {
                let interrupted =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
            }
            continue;
        }
        rates = meter.look(look()?, Instant::now());
        next = Instant::now() + interval;
    }
}

fn draw(frame: &mut Frame<'_>, rates: &[Rates], interval: Duration) {
    let [head, body] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(frame.area());
    let bits: f64 = rates.iter().map(|one| one.out_bits + one.in_bits).sum();
    let up = rates.iter().filter(|one| one.standing == Standing::Up).count();
    let title = format!(
        "vmloop  {up} of {} up, {}bit/s in all, every {:.1} s   q: quit",
        plural(rates.len() as u64, "channel"),
        short(bits),
        interval.as_secs_f64()
    );
    frame.render_widget(Line::from(title), head);
    let rows = rates.iter().map(|one| {
        let style = match one.standing {
            Standing::Up if one.out_bits + one.in_bits > 0.0 => Style::new().fg(Color::Green),
            Standing::Up => Style::new(),
            Standing::Fault => Style::new().fg(Color::Red),
            Standing::Other => Style::new().fg(Color::DarkGray),
        };
        TableRow::new(cells(one).map(Cell::from)).style(style)
    });
    let mut widths = [Constraint::Length(11); 8];
    widths[0] = Constraint::Min(20);
    let table = Table::new(rows, widths)
        .header(TableRow::new(HEADINGS).style(Style::new().add_modifier(Modifier::REVERSED)));
    frame.render_widget(table, body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let mut meter = Meter::default();
        let now = Instant::now();
        let row = |name: &str, bytes| Row {
            name: name.into(),
            out_bytes: bytes,
            out_frames: bytes / 10,
            ..Row::default()
        };
        assert_eq!(meter.look(vec![row("a", 1000)], now)[0].out_bits, 0.0);
        let later = now + Duration::from_secs(2);
        let rates = meter.look(vec![row("a", 3000), row("b", 99)], later);
        assert_eq!((rates[0].out_bits, rates[0].out_frames), (8000.0, 100.0));
        assert_eq!(rates[1].out_bits, 0.0);
        // A new channel between the same two.
        assert_eq!(meter.look(vec![row("a", 10)], later + Duration::from_secs(1))[0].out_bits, 0.0);
    }
}
