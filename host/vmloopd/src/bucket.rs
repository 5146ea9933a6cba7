// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A bound of how much one guest may cause in a time.

use std::time::Duration;

use tokio::time::Instant;

/// Grants so many things per second, and some at once.
#[derive(Debug)]
pub struct Bucket {
    per_second: f64,
    most: f64,
    level: f64,
    then: Instant,
}

impl Bucket {
    /// A full one.
    pub fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most, level: most, then: Instant::now() }
    }

    /// Takes one, or says when there will be one.
    ///
    /// # Errors
    /// The instant at which to ask again.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let passed = now.saturating_duration_since(self.then).as_secs_f64();
        self.then = now;
        self.level = (self.level + passed * self.per_second).min(self.most);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return Ok(());
        }
        Err(now + Duration::from_secs_f64((1.0 - self.level) / self.per_second))
    }

    /// Takes more than are there, for what cost more than was known before.
    pub fn owe(&mut self, count: f64) {
        self.level -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets() {
        let mut bucket = Bucket::new(10.0, 2.0);
        let now = Instant::now();
        assert_eq!(bucket.take(now), Ok(()));
        assert_eq!(bucket.take(now), Ok(()));
        let Err(later) = bucket.take(now) else { panic!("a third one") };
        let wait = later - now;
        assert!(wait > Duration::from_millis(90) && wait < Duration::from_millis(110), "{wait:?}");
        assert_eq!(bucket.take(later + Duration::from_millis(1)), Ok(()));
        assert!(bucket.take(later + Duration::from_millis(1)).is_err());
        bucket.owe(10.0);
        assert!(bucket.take(later + Duration::from_millis(1001)).is_err());
        assert!(bucket.take(later + Duration::from_millis(1201)).is_ok());
    }
}
