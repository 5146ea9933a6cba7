// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compiles the one implementation of the ring, and of what a table of lanes needs besides,
//! that all parties share.

fn main() {
    let root = "../..";
    let files = ["area", "life", "news", "ring"];
    for file in files {
        println!("cargo::rerun-if-changed={root}/kernel/core/{file}.c");
        println!("cargo::rerun-if-changed={root}/kernel/core/{file}.h");
    }
    for file in ["kernel/core/ring_os.h", "include/vmloop_shm.h", "include/vmloop_lanes.h"] {
        println!("cargo::rerun-if-changed={root}/{file}");
    }
    println!("cargo::rerun-if-changed=src/shim.c");
    cc::Build::new()
        .files(files.map(|file| format!("{root}/kernel/core/{file}.c")))
        .file("src/shim.c")
        .include(format!("{root}/include"))
        .include(format!("{root}/kernel/core"))
        .std("gnu11")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .compile("vmloop_ring");
}
