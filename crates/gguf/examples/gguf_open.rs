//! Opens model files and says what the reader makes of them: one line each, or a listing.
//!
//! ```text
//! gguf_open FILE…         ok or the error, milliseconds, private KiB that opening added
//! gguf_open --list FILE   all metadata and tensors
//! ```

use haversack_gguf::Gguf;
use haversack_memory::ProcessUsage;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((flag, files)) if flag == "--list" => files.iter().for_each(|f| list(f)),
        _ => args.iter().for_each(|f| line(f)),
    }
}

fn line(file: &str) {
    let private = || ProcessUsage::now().map_or(0, |u| u.private_bytes / 1024);
    let before = private();
    let start = Instant::now();
    let opened = Gguf::open(file);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let kib = private().saturating_sub(before);
    match opened {
        Ok(g) => println!("ok\t{ms:.2} ms\t{kib} KiB\t{g:?}"),
        Err(e) => println!("error\t{ms:.2} ms\t{kib} KiB\t{e}"),
    }
}

fn list(file: &str) {
    let g = match Gguf::open(file) {
        Ok(g) => g,
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(1);
        }
    };
    println!(
        "GGUF version {}, {} part(s), {} bytes",
        g.version(),
        g.parts(),
        g.file_bytes()
    );
    for (key, value) in g.metadata() {
        println!("{key:<44} {:<16} {value}", value.kind_name());
    }
    for t in g.tensors() {
        println!("{:<44} {:<7} {:?}", t.name, t.ty, t.shape());
    }
}
