// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Pages: the form in which a guest finds in XenStore what we have to say to it
//! (docs/protocol.md, section 8). A guest reads one node in the time in which
//! dom0 is woken and it is woken again; so all lines are in as few nodes as
//! they fit.

use vmloop_xenstore::{Error, Store, Transaction};

use super::nodes::{self, Lines};

/// Longest page in bytes. XenStore takes 2048 in one node by default.
const PAGE_MAX: usize = 2000;
/// Room for a page's first line: two numbers.
const HEAD: usize = 32;

/// What stands in a guest's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// number of this state of them; never the same for two
    pub generation: u64,
    /// how many nodes there are
    pub count: usize,
    /// what they say
    pub lines: Lines,
}

/// Path of a page of the guest whose tree is at `root`.
fn path(root: &str, number: usize) -> String {
    format!("{root}/page/{number}")
}

/// The pages that say this, of which there is always one.
fn pages(generation: u64, lines: &Lines) -> Vec<String> {
    let mut bodies = vec![String::new()];
    for (word, rest) in lines {
        let line = format!("\n{word} {rest}");
        match bodies.last_mut() {
            Some(last) if last.is_empty() || HEAD + last.len() + line.len() <= PAGE_MAX => {
                last.push_str(&line);
            }
            _ => bodies.push(line),
        }
    }
    let count = bodies.len();
    bodies.into_iter().map(|body| format!("{generation} {count}{body}")).collect()
}

/// Reads what an earlier agent wrote; what makes no sense is none of its lines.
fn parse(pages: &[String]) -> Written {
    let mut written = Written { count: pages.len(), ..Written::default() };
    for page in pages {
        let mut lines = page.lines();
        let head = lines.next().and_then(|head| head.split(' ').next());
        written.generation = head.and_then(nodes::number).unwrap_or(0).max(written.generation);
        let two = lines.filter_map(|line| line.split_once(' '));
        written.lines.extend(two.map(|(word, rest)| (word.to_owned(), rest.to_owned())));
    }
    written
}

/// What stands in the pages of the guest whose tree is at `root`.
///
/// # Errors
/// Those of XenStore.
pub async fn read(transaction: &Transaction, root: &str) -> Result<Written, Error> {
    let mut all = Vec::new();
    while let Some(page) = transaction.text(&path(root, all.len())).await? {
        all.push(page);
    }
    Ok(parse(&all))
}

/// What the pages of a guest are to say next, made into pages.
pub struct Draft {
    pages: Vec<String>,
    state: Written,
}

impl Draft {
    /// Pages with a generation that none before had.
    pub fn new(generation: u64, lines: Lines) -> Self {
        let pages = pages(generation, &lines);
        Self { state: Written { generation, count: pages.len(), lines }, pages }
    }

    /// Whether there is one page before and after: then [`Draft::write_only`]
    /// changes all at once.
    pub fn is_only(&self, now: &Written) -> bool {
        (self.state.count, now.count) == (1, 1)
    }

    /// Writes the only page: one trip, where a transaction takes three.
    ///
    /// # Errors
    /// Those of XenStore.
    pub async fn write_only(&self, store: &Store, root: &str) -> Result<(), Error> {
        store.write(&path(root, 0), &self.pages[0]).await
    }

    /// Writes all pages in place of those that are there now.
    ///
    /// # Errors
    /// Those of XenStore.
    pub async fn write(
        &self,
        transaction: &Transaction,
        root: &str,
        now: &Written,
    ) -> Result<(), Error> {
        for number in self.pages.len()..now.count {
            transaction.remove(&path(root, number)).await?;
        }
        for (number, page) in self.pages.iter().enumerate() {
            transaction.write(&path(root, number), page).await?;
        }
        Ok(())
    }

    /// It is written.
    pub fn written(self) -> Written {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Lines {
        (0..count).map(|n| (format!("peer/{n}"), "x".repeat(n % 600))).collect()
    }

    #[test]
    fn one_page_is_enough_for_few() {
        let few = Lines::from([("agent".into(), "1 2".into()), ("stats".into(), "7".into())]);
        assert_eq!(pages(3, &few), ["3 1\nagent 1 2\nstats 7"]);
        assert_eq!(pages(u64::MAX, &Lines::new()), [format!("{} 1", u64::MAX)]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        for count in [0, 1, 2, 40, 1000] {
            let (lines, generation) = (lines(count), u64::MAX);
            let pages = pages(generation, &lines);
            assert!(pages.iter().all(|page| page.len() <= PAGE_MAX), "{count}");
            assert!(pages.len() <= 2 + count / 4, "{count}");
            assert_eq!(parse(&pages), Written { generation, count: pages.len(), lines });
        }
        let odd = ["x".to_owned(), String::new(), "7 9\n\nword\na b".into()];
        let lines = Lines::from([("a".into(), "b".into())]);
        assert_eq!(parse(&odd), Written { generation: 7, count: 3, lines });
    }
}
