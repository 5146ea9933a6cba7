// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tables of text, and numbers for people.

use std::io::{self, Write};

/// Rows under headings, columns as wide as they must be.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|text| (*text).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there is nothing but headings.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `1.2M`, in steps of 1000.
pub fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        if number < 999.5 {
            let digits = usize::from(!unit.is_empty() && number < 99.95);
            return format!("{number:.digits$}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

/// `1 channel`, `2 channels`
pub fn plural(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// `4 MiB`
pub fn bytes(number: u64) -> String {
    let mut number = number;
    for unit in ["B", "KiB", "MiB"] {
        if number < 1024 || !number.is_multiple_of(1024) {
            return format!("{number} {unit}");
        }
        number /= 1024;
    }
    format!("{number} GiB")
}

/// `3h12m`
pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// `-` for nothing.
pub fn dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.into() }
}

/// A time in seconds since the epoch, as `2026-11-24 23:05:01 UTC`.
pub fn date(time: f64) -> String {
    let seconds = time.max(0.0) as i64;
    let (days, rest) = (seconds / 86400, seconds % 86400);
    // The days of 400 years, counted from a 1st of March, repeat.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{of_month:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (time, text) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_399.9, "2000-02-28 23:59:59 UTC"),
            (951_782_400.0, "2000-02-29 00:00:00 UTC"),
            (1_735_689_599.0, "2024-12-31 23:59:59 UTC"),
            (1_795_562_642.0, "2026-11-24 23:24:02 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(time), text);
        }
    }

    #[test]
    fn numbers() {
        let shorts: Vec<_> =
            [0.0, 12.0, 999.0, 1234.0, 99_949.0, 123_456.0, 9.9e9, 1e18].map(short).into();
        assert_eq!(shorts, ["0", "12", "999", "1.2k", "99.9k", "123k", "9.9G", "1000P"]);
        assert_eq!([bytes(4 << 20), bytes(0), bytes(1000)], ["4 MiB", "0 B", "1000 B"]);
        assert_eq!(duration(3723), "1h2m");
        let counts = [0, 1, 2].map(|number| plural(number, "channel"));
        assert_eq!(counts, ["0 channels", "1 channel", "2 channels"]);
    }

    #[test]
    fn tables() {
        let mut table = Table::new(&["A", "B"]);
        assert!(table.is_empty());
        table.row(["long".into(), "x".into()]);
        let mut out = Vec::new();
        table.write(&mut out).expect("written");
        assert_eq!(String::from_utf8_lossy(&out), "A     B\nlong  x\n");
    }
}
