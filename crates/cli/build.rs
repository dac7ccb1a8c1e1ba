//! Tells the program which compiler made it: measurements are kept with that name.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let version = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    println!(
        "cargo:rustc-env=HAVERSACK_COMPILER={}",
        version.as_deref().map_or("unknown", str::trim)
    );
}
