//! What the sources promise about their shape.

use super::root;
use super::source::{Sources, circles};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn show() {
    let sources = Sources::read(&root());
    let arrows = sources.arrows();
    let name = |i: usize| sources.files[i].path.display().to_string();
    for group in circles(&arrows) {
        println!(
            "circle {:?}",
            group.iter().map(|&i| name(i)).collect::<Vec<_>>()
        );
    }
    // folders
    let mut folders: BTreeSet<(String, String)> = BTreeSet::new();
    let mut why: BTreeMap<(String, String), String> = BTreeMap::new();
    for &(a, b) in &arrows {
        let (x, y) = (&sources.files[a], &sources.files[b]);
        let common = x
            .module
            .iter()
            .zip(&y.module)
            .take_while(|(p, q)| p == q)
            .count();
        let (Some(p), Some(q)) = (x.module.get(common), y.module.get(common)) else {
            continue;
        };
        let base = format!("{}/{}", x.krate, x.module[..common].join("/"));
        let key = (format!("{base}/{p}"), format!("{base}/{q}"));
        why.entry(key.clone())
            .or_insert(format!("{} -> {}", name(a), name(b)));
        folders.insert(key);
    }
    for group in circles(&folders) {
        println!("folders {group:?}");
        for ((a, b), w) in &why {
            if group.contains(a) && group.contains(b) {
                println!("     {w}");
            }
        }
    }
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut impls: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (i, file) in sources.files.iter().enumerate() {
        for t in file.public_types() {
            types.entry(t).or_default().push(name(i));
        }
        for t in file.inherent_impls() {
            impls
                .entry((file.krate.clone(), t))
                .or_default()
                .insert(name(i));
        }
        for (s, n) in file.structs() {
            if n > 14 {
                println!("struct {s} {n} {}", name(i));
            }
        }
    }
    println!("twice: {}", types.values().filter(|w| w.len() > 1).count());
    for (t, w) in types.iter().filter(|(_, w)| w.len() > 1) {
        println!("  {t} {w:?}");
    }
    for (t, w) in impls.iter().filter(|(_, w)| w.len() > 3) {
        println!("impls {t:?} {}", w.len());
    }
}
