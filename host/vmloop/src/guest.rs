//! In a guest: what the kernel modules say.
use crate::options::Options;
/// x
pub fn is_guest() -> bool {
    false
}
/// x
pub fn run(_o: &Options) -> anyhow::Result<()> {
    anyhow::bail!("todo")
}
