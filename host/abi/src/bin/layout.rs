// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Prints the layout as Rust sees it, to be compared with `include/layout.golden`.

fn main() {
    print!("{}", vmloop_abi::layout::layout());
}
