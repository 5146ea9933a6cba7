//! Channels and their traffic, again and again.
use std::io::{self, Write};
/// x
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: String,
    pub state: String,
    pub out_bytes: u64,
    pub out_frames: u64,
    pub in_bytes: u64,
    pub in_frames: u64,
    pub doorbells: u64,
    pub dropped: u64,
}
/// x
pub fn run(
    _i: f64,
    _b: Option<u64>,
    _look: &mut dyn FnMut() -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<()> {
    writeln!(io::stdout(), "todo")?;
    Ok(())
}
