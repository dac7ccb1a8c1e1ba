//! Rules about the shape of product sources. Each names what breaks it; exceptions are in a list, with their reasons.

use super::root;
use super::source::{Source, Sources, circles};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

static SOURCES: LazyLock<Sources> = LazyLock::new(|| Sources::read(&root()));

/// Files that are one idea: a circle among exactly these is allowed. (files below `crates/`, reason)
const ONE_IDEA: [(&[&str], &str); 0] = [];

/// Names of the standard library that a type of ours must not take.
const STD_NAMES: [&str; 37] = [
    "Any", "Arc", "Box", "Cell", "Chars", "Clone", "Copy", "Cow", "Debug", "Default", "Display",
    "Drop", "Duration", "Eq", "Fn", "From", "Future", "Hash", "Instant", "Into", "Iter",
    "Iterator", "Mutex", "Option", "Ord", "Ordering", "Path", "Pin", "Range", "Read", "Result",
    "Send", "String", "Sync", "Vec", "Wake", "Write",
];

/// Fields that a struct has at most.
const FIELDS_MAX: usize = 14;

/// Structs that may have more fields: each field is a name on a wire, a command line, or in a report. (name, why)
const WIDE: [(&str, &str); 11] = [
    ("CacheArgs", "flags of a command line"),
    ("CompareArgs", "flags of a command line"),
    ("CommonFields", "fields of a request on the wire"),
    ("ContextReport", "a report"),
    ("haversack_memory", "a structure of the C header"),
    ("haversack_prompt_options", "a structure of the C header"),
    ("SessionInspection", "a report"),
    ("SessionStats", "a report"),
    ("Metrics", "a report"),
    ("LayerWeights", "the tensors of a layer"),
    (
        "Vocab",
        "what a file says about its tokens: data as it is stored",
    ),
];

/// Files that a type's inherent `impl`s are in at most.
const IMPL_FILES_MAX: usize = 3;

/// Words of planted bugs: they live in `mutants/`, not in the product.
const PLANTED: [&str; 5] = ["planted(", "zoo", "Bug::", "mutant", "plant("];

fn name(file: &Source) -> String {
    let path = file.path.display().to_string();
    path.trim_start_matches("crates/").to_string()
}

#[test]
fn no_circle_between_files() {
    let arrows = SOURCES.arrows();
    let allowed: Vec<BTreeSet<&str>> = ONE_IDEA
        .iter()
        .map(|(files, _)| files.iter().copied().collect())
        .collect();
    let mut found = Vec::new();
    for group in circles(&arrows) {
        let names: BTreeSet<String> = group.iter().map(|&i| name(&SOURCES.files[i])).collect();
        let is_allowed =
            |files: &&BTreeSet<&str>| files.iter().copied().eq(names.iter().map(String::as_str));
        if !allowed.iter().any(|files| is_allowed(&files)) {
            found.push(format!("{names:?}"));
        }
    }
    assert!(found.is_empty(), "circles:\n{}", found.join("\n"));
    for (files, _) in ONE_IDEA {
        for file in files {
            assert!(
                SOURCES.files.iter().any(|source| name(source) == *file),
                "{file} is gone"
            );
        }
    }
}

/// Siblings, folders or files, use each other in one direction.
#[test]
fn no_arrow_between_folders_runs_back() {
    let mut arrows = BTreeSet::new();
    let mut examples = BTreeMap::new();
    for (from, to) in SOURCES.arrows() {
        let (from, to) = (&SOURCES.files[from], &SOURCES.files[to]);
        let common = from
            .module
            .iter()
            .zip(&to.module)
            .take_while(|(a, b)| a == b)
            .count();
        let (Some(a), Some(b)) = (from.module.get(common), to.module.get(common)) else {
            continue;
        };
        let parent = format!("{}/{}", from.krate, from.module[..common].join("/"));
        let arrow = (format!("{parent}/{a}"), format!("{parent}/{b}"));
        examples
            .entry(arrow.clone())
            .or_insert_with(|| format!("{} uses {}", name(from), name(to)));
        arrows.insert(arrow);
    }
    let mut found = Vec::new();
    for group in circles(&arrows) {
        let inside = |(a, b): &&(String, String)| group.contains(a) && group.contains(b);
        let why: Vec<&String> = examples
            .iter()
            .filter(|(arrow, _)| inside(arrow))
            .map(|(_, why)| why)
            .collect();
        let is_allowed = ONE_IDEA.iter().any(|(files, _)| {
            why.iter()
                .all(|why| files.iter().filter(|file| why.contains(*file)).count() == 2)
        });
        if !is_allowed {
            found.push(format!("{group:?}: {why:?}"));
        }
    }
    assert!(
        found.is_empty(),
        "folders in circles:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &SOURCES.files {
        for public in file.public_types() {
            types.entry(public).or_default().push(name(file));
        }
    }
    let taken: Vec<_> = types
        .keys()
        .filter(|name| STD_NAMES.contains(&name.as_str()))
        .collect();
    assert!(taken.is_empty(), "names of std: {taken:?}");
    let twice: Vec<_> = types.iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "{} names twice: {twice:#?}", twice.len());
}

#[test]
fn a_type_has_its_methods_in_one_place() {
    let mut impls: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for file in &SOURCES.files {
        for of in file.inherent_impls() {
            impls.entry((&file.krate, of)).or_default().push(name(file));
        }
    }
    let wide: Vec<_> = impls
        .iter()
        .filter(|(_, files)| files.len() > IMPL_FILES_MAX)
        .collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn a_struct_has_few_fields() {
    let mut seen = BTreeSet::new();
    let mut wide = Vec::new();
    for file in &SOURCES.files {
        for (of, fields) in file.structs() {
            if fields > FIELDS_MAX {
                seen.insert(of.clone());
                if !WIDE.iter().any(|(name, _)| *name == of) {
                    wide.push(format!("{of} has {fields} fields: {}", name(file)));
                }
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
    for (of, _) in WIDE {
        assert!(seen.contains(of), "{of} needs no exception any more");
    }
}

#[test]
fn products_carry_no_planted_bug() {
    for file in &SOURCES.files {
        for word in PLANTED {
            assert!(!file.text.contains(word), "{} mentions {word}", name(file));
        }
    }
}
