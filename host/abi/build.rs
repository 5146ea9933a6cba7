// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compiles the one implementation of the ring that all parties share.

fn main() {
    let root = "../..";
    for file in [
        "kernel/core/ring.c",
        "kernel/core/ring.h",
        "kernel/core/ring_os.h",
        "include/vmloop_shm.h",
    ] {
        println!("cargo::rerun-if-changed={root}/{file}");
    }
    println!("cargo::rerun-if-changed=src/shim.c");
    cc::Build::new()
        .file(format!("{root}/kernel/core/ring.c"))
        .file("src/shim.c")
        .include(format!("{root}/include"))
        .include(format!("{root}/kernel/core"))
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .compile("vmloop_ring");
}
