// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a QEMU says of a migration.

use serde_json::{Value, json};
use vmloop_qmp::{self as qmp, Qmp};

use crate::machine::Moving;

/// What a QEMU says about a migration; of an old one, while there is no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// whether it is under way
    pub moving: Moving,
    /// whether the machine runs
    pub running: bool,
    /// QEMU's word for the migration; empty if there never was one
    pub status: String,
    /// QEMU's text for why it failed; may be empty
    pub error: String,
    /// how long it took, once it is over
    pub total_ms: u64,
    /// for how long the machine stood still, once it is over
    pub downtime_ms: u64,
}

impl Migration {
    fn parse(run: &Value, migrate: &Value) -> Self {
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (run, status) = (text(run, "status"), text(migrate, "status"));
        let moving = match (run.as_str(), status.as_str()) {
            ("inmigrate", _) => Moving::In,
            // A new state of a newer QEMU is one in which it is under way.
            (_, status)
                if !matches!(status, "" | "none" | "cancelled" | "failed" | "completed") =>
            {
                Moving::Out
            }
            ("postmigrate" | "finish-migrate", _) => Moving::Left,
            _ => Moving::No,
        };
        Self {
            moving,
            running: run == "running",
            status,
            error: text(migrate, "error-desc"),
            total_ms: migrate["total-time"].as_u64().unwrap_or(0),
            downtime_ms: migrate["downtime"].as_u64().unwrap_or(0),
        }
    }
}

/// Asks whether a machine is on its way.
///
/// # Errors
/// Those of [`Qmp::execute`].
pub async fn migration(qmp: &Qmp) -> Result<Migration, qmp::Error> {
    // In this order: what has just ended is not taken for what still runs.
    let migrate = qmp.execute("query-migrate", json!({})).await?;
    let run = qmp.execute("query-status", json!({})).await?;
    Ok(Migration::parse(&run, &migrate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_on_their_way() {
        let moving = |run: &str, status: &str| {
            Migration::parse(&json!({"status": run}), &json!({"status": status})).moving
        };
        assert_eq!(Migration::parse(&json!({"status": "running"}), &json!({})).moving, Moving::No);
        for over in ["none", "failed", "cancelled", "completed"] {
            assert_eq!(moving("running", over), Moving::No, "{over}");
        }
        for under_way in ["setup", "active", "pre-switchover", "device", "cancelling", "novel"] {
            assert_eq!(moving("running", under_way), Moving::Out, "{under_way}");
        }
        assert_eq!(moving("finish-migrate", "device"), Moving::Out);
        assert_eq!(moving("postmigrate", "completed"), Moving::Left);
        assert_eq!(moving("inmigrate", "active"), Moving::In);
        let over = Migration::parse(
            &json!({"status": "postmigrate"}),
            &json!({"status": "completed", "total-time": 1200, "downtime": 31}),
        );
        assert_eq!((over.total_ms, over.downtime_ms, over.running), (1200, 31, false));
    }
}
