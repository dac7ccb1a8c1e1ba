//! The shape of the workspace: who may use whom, and where what may live.
//!
//! Crates stand on each other in the order of [`CRATES`]; `unsafe` only in `kernels`, `memory` and `c`; HTTP, JSON and `anyhow`
//! only where they are listed; no C or C++ below the library.
//! Absences are easy to promise in a document and easy to lose in a pull request: so they are tests.

mod rules;
mod source;
mod supply;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our crates from the ground up: folder, package, and whether it may hold `unsafe`. A crate uses what stands above it in
/// this list, never below.
const CRATES: [(&str, &str, bool); 16] = [
    ("kernels", "haversack-kernels", true),
    ("memory", "haversack-memory", true),
    ("gguf", "haversack-gguf", false),
    ("text", "haversack-text", false),
    ("cache", "haversack-cache", false),
    ("engine", "haversack-engine", false),
    ("grammar", "haversack-grammar", false),
    ("conversations", "haversack-conversations", false),
    ("haversack", "haversack", false),
    ("eval", "haversack-eval", false),
    ("hub", "haversack-hub", false),
    ("server", "haversack-server", false),
    ("cli", "haversack-cli", false),
    // Reads and writes through the pointers of its callers.
    ("c", "haversack-c", true),
    ("python", "haversack-python", false),
    ("testing", "haversack-testing", true),
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn manifest(folder: &str) -> toml::Table {
    let path = root().join("crates").join(folder).join("Cargo.toml");
    fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Names of the dependencies in a section, as the packages are called.
fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    let Some(table) = manifest.get(section).and_then(|section| section.as_table()) else {
        return BTreeSet::new();
    };
    table
        .iter()
        .map(|(name, value)| {
            let package = value.get("package").and_then(|package| package.as_str());
            package.unwrap_or(name).to_string()
        })
        .collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn all_sources() -> Vec<PathBuf> {
    sources(&root().join("crates"))
}

/// The text without comments, strings and character literals, so that a word in it is code.
fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let mut i = 0;
    while i < bytes.len() {
        let rest = &text[i..];
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(end) = raw_string(rest) {
            end
        } else if rest.starts_with('"') {
            string(rest)
        } else if rest.starts_with('\'') {
            // A character literal closes within a few bytes; a lifetime does not.
            character(rest).unwrap_or(1)
        } else {
            let c = rest.chars().next().unwrap();
            out.push(c);
            i += c.len_utf8();
            continue;
        };
        out.push(' ');
        i += skip;
    }
    out
}

fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|&b| b == b'#').count();
    after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let begin = rest.len() - after.len() + hashes + 1;
    let end = rest[begin..].find(&close)?;
    Some(begin + end + close.len())
}

fn string(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut i = 1;
    while i < bytes.len() && bytes[i] != b'"' {
        i += if bytes[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

fn character(rest: &str) -> Option<usize> {
    if rest[1..].starts_with('\\') {
        return rest[3..].find('\'').map(|end| end + 4);
    }
    let c = rest[1..].chars().next()?;
    let end = 1 + c.len_utf8();
    rest[end..].starts_with('\'').then_some(end + 1)
}

fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

#[test]
fn words_in_comments_and_strings_are_not_code() {
    let text = "let a = \"unsafe \\\" x\"; // unsafe\n/* unsafe */ let b = r#\"unsafe\"#; let c = 'u'; fn f<'a>() {} '\\''";
    assert!(!has_word(&code(text), "unsafe"), "{}", code(text));
    assert!(has_word(
        &code("fn f<'a>(x: &'a str) { unsafe { g() } }"),
        "unsafe"
    ));
    assert!(!has_word("unsafe_code", "unsafe"));
}

#[test]
fn every_crate_is_in_the_list() {
    let listed: BTreeSet<String> = CRATES
        .iter()
        .map(|(folder, ..)| folder.to_string())
        .collect();
    let found: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, listed, "a new crate needs its rules here");
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let packages: Vec<&str> = CRATES.iter().map(|(_, package, ..)| *package).collect();
    for (floor, (folder, package, _)) in CRATES.iter().enumerate() {
        let manifest = manifest(folder);
        assert_eq!(manifest["package"]["name"].as_str(), Some(*package));
        for section in ["dependencies", "build-dependencies"] {
            for used in dependencies(&manifest, section) {
                let above = packages.iter().position(|package| *package == used);
                assert!(
                    above.is_none_or(|at| at < floor),
                    "{package} may not use {used}"
                );
            }
        }
    }
}

#[test]
fn json_http_and_anyhow_have_an_address() {
    let cli_only = [
        "anyhow",
        "serde_json",
        "ureq",
        "clap",
        "tokio",
        "axum",
        "indicatif",
    ];
    for (folder, package, ..) in CRATES {
        if folder == "cli" {
            continue;
        }
        let may_use: &[&str] = match folder {
            // Schemas are JSON.
            "grammar" => &["serde_json"],
            "server" => &["serde_json", "tokio", "axum"],
            // Behind the feature `grammar`.
            "haversack" => &["serde_json"],
            "hub" => &["serde_json", "ureq"],
            _ => &[],
        };
        let used = dependencies(&manifest(folder), "dependencies");
        for name in cli_only {
            assert!(
                may_use.contains(&name) || !used.contains(name),
                "{package} may not use {name}"
            );
        }
    }
}

#[test]
fn unsafe_has_an_address() {
    for (folder, package, may) in CRATES {
        if may {
            continue;
        }
        let folder = root().join("crates").join(folder);
        for path in sources(&folder) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(
                !has_word(&code(&text), "unsafe"),
                "{}: no unsafe in {package}",
                path.display()
            );
        }
        let roots = [folder.join("src/lib.rs"), folder.join("src/main.rs")];
        for path in roots.iter().filter(|path| path.exists()) {
            let text = fs::read_to_string(path).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{}",
                path.display()
            );
        }
    }
}

#[test]
fn modules_say_what_they_are() {
    for path in all_sources() {
        let text = fs::read_to_string(&path).unwrap();
        let head: Vec<&str> = text.lines().take(8).collect();
        // A crate may open with its README instead.
        let said = head.iter().any(|line| {
            line.starts_with("//! ") && line.len() > 12 || line.starts_with("#![doc = include_str!")
        });
        assert!(said, "{} opens without a sentence", path.display());
    }
}

#[test]
fn nothing_is_left_to_do_inside_the_code() {
    for path in all_sources() {
        let code = code(&fs::read_to_string(&path).unwrap());
        for word in ["todo!", "unimplemented!", "dbg!"] {
            assert!(!code.contains(word), "{}: {word}", path.display());
        }
    }
}

/// The packages `haversack` is built from, with their build scripts' helpers if asked.
fn library_tree(edges: &str) -> BTreeMap<String, String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "-p",
            "haversack",
            "--prefix",
            "none",
            "--edges",
            edges,
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| (name.to_string(), version.to_string()))
        .collect()
}

#[test]
fn no_c_below_the_library() {
    // Constants and structures of the kernel in Rust; nothing is compiled or linked.
    let rust_only = ["linux-raw-sys"];
    let tree = library_tree("normal");
    println!("haversack builds from {} crates", tree.len());
    for name in tree.keys() {
        let foreign = name.ends_with("-sys")
            || ["cc", "cmake", "bindgen", "libc", "openssl"].contains(&name.as_str());
        assert!(
            !foreign || rust_only.contains(&name.as_str()),
            "{name} is in the library's tree"
        );
    }
    assert!(
        tree.contains_key("haversack-kernels"),
        "the tree is not what it should be"
    );

    // blake3's build script carries `cc`, and with `pure` does not call it. Nobody else may.
    let helpers: BTreeSet<String> = library_tree("normal,build")
        .into_keys()
        .filter(|name| !tree.contains_key(name))
        .collect();
    for name in ["cmake", "bindgen", "pkg-config", "vcpkg", "nasm-rs"] {
        assert!(!helpers.contains(name), "{name} helps to build the library");
    }
    if helpers.contains("cc") {
        for folder in ["engine", "memory", "conversations"] {
            let manifest = manifest(folder);
            let features = manifest["dependencies"]["blake3"]["features"]
                .as_array()
                .unwrap();
            assert!(
                features
                    .iter()
                    .any(|feature| feature.as_str() == Some("pure")),
                "{folder}"
            );
        }
        let users = Command::new(env!("CARGO"))
            .args([
                "tree",
                "-p",
                "haversack",
                "--prefix",
                "depth",
                "--edges",
                "normal,build",
                "--invert",
                "cc",
            ])
            .current_dir(root())
            .output()
            .unwrap();
        let users = String::from_utf8_lossy(&users.stdout).into_owned();
        let direct: Vec<&str> = users
            .lines()
            .filter_map(|line| line.strip_prefix('1'))
            .collect();
        assert!(
            direct.iter().all(|user| user.starts_with("blake3 ")),
            "{users}"
        );
    }
}

#[test]
fn the_catalogue_holds_no_index_address() {
    for path in ["crates/hub/catalogue.toml", "crates/hub/src/fetch/wheel.rs"] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        assert!(
            !text.contains("pypi.org") && !text.contains("pythonhosted"),
            "{path}"
        );
    }
}

/// A crate that lists its test programs runs every test file: each is a program, or a module of `all.rs`.
#[test]
fn every_test_file_is_run() {
    for (folder, ..) in CRATES {
        let manifest = manifest(folder);
        let package = manifest["package"].as_table().unwrap();
        if package.get("autotests").and_then(|auto| auto.as_bool()) != Some(false) {
            continue;
        }
        let tests = root().join("crates").join(folder).join("tests");
        let all = fs::read_to_string(tests.join("all.rs")).unwrap();
        let programs = manifest["test"].as_array().unwrap().iter();
        let programs: Vec<&str> = programs.map(|p| p["path"].as_str().unwrap()).collect();
        for entry in fs::read_dir(&tests).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let Some(name) = file.strip_suffix(".rs") else {
                continue;
            };
            let is_program = programs.contains(&format!("tests/{file}").as_str());
            let is_module = all.contains(&format!("\nmod {name};\n"));
            assert!(
                is_program || is_module,
                "crates/{folder}/tests/{file} is run by no test program; accepted: a line in all.rs"
            );
        }
    }
}
