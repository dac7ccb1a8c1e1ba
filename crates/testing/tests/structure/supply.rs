//! What we are built from: licences, versions that exist twice, sources, known defects, and that the notices name all of it.
//! `deny.toml` has the rules, so that `cargo deny` checks the same.

use crate::{CRATES, manifest, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

fn toml_file(name: &str) -> toml::Table {
    let text = fs::read_to_string(root().join(name)).unwrap();
    text.parse().unwrap()
}

fn texts(value: &toml::Value) -> Vec<&str> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap()).collect()
}

/// (name, version) of every package that is not ours, and where it comes from.
fn locked() -> BTreeMap<(String, String), String> {
    let lock = toml_file("Cargo.lock");
    let packages = lock["package"].as_array().unwrap().iter();
    let foreign = packages.filter_map(|package| {
        let text = |key: &str| package.get(key)?.as_str().map(str::to_owned);
        Some(((text("name")?, text("version")?), text("source")?))
    });
    foreign.collect()
}

/// (name, version): licence, of what these packages are built from on this platform.
fn tree(arguments: &[&str]) -> BTreeMap<(String, String), String> {
    let format = ["--locked", "--prefix", "none", "--format", "{p}|{l}"];
    let output = Command::new(env!("CARGO"))
        .arg("tree")
        .args(arguments)
        .args(format)
        .current_dir(root())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let package = |line: &str| {
        let (package, licence) = line.split_once('|')?;
        let (name, version) = package.split_once(" v")?;
        let version = version.split(' ').next()?;
        // Ours have a path.
        let is_ours = package.contains("(/");
        let licence = licence.trim_end_matches(" (*)").to_owned();
        (!is_ours).then(|| ((name.to_owned(), version.to_owned()), licence))
    };
    text.lines().filter_map(package).collect()
}

/// Whether a licence expression can be met: `OR`, `AND`, `WITH` and parentheses.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&words, &mut at, allowed);
    met && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let word = words.get(*at).copied().unwrap_or_default();
    *at += 1;
    if word == "(" {
        let met = any_of(words, at, allowed);
        *at += 1;
        return met;
    }
    // An exception only adds to what is allowed.
    if words.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    allowed.contains(&word)
}

#[test]
fn licence_expressions() {
    let allowed = ["MIT", "ISC"];
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("GPL-3.0 AND ISC OR MIT", true),
        ("MIT WITH exception", true),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

/// What a registry asks for, and what it shows of a crate. `.ci/release --crates` makes the packages themselves.
#[test]
fn crates_can_be_published() {
    for (folder, name, _) in CRATES {
        let manifest = manifest(folder);
        let package = &manifest["package"].as_table().unwrap();
        if folder == "testing" {
            assert_eq!(package["publish"].as_bool(), Some(false));
            continue;
        }
        assert!(!package.contains_key("publish"), "{name}");
        let description = package["description"].as_str().unwrap();
        assert!(description.ends_with('.'), "{name}: {description}");
        for key in ["license", "repository", "rust-version", "version"] {
            let inherits = &package[key]["workspace"];
            assert_eq!(inherits.as_bool(), Some(true), "{name}: {key}");
        }
        let (keywords, categories) = (texts(&package["keywords"]), texts(&package["categories"]));
        assert!((1..=5).contains(&keywords.len()), "{name}: {keywords:?}");
        assert!(keywords.iter().all(|word| word.len() <= 20), "{keywords:?}");
        assert!((1..=5).contains(&categories.len()), "{name}");
        let folder = root().join("crates").join(folder);
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(folder.join(file).exists(), "{name} has no {file}");
        }
    }
}

#[test]
fn licences_are_allowed() {
    let rules = toml_file("deny.toml");
    let allowed = texts(&rules["licenses"]["allow"]);
    for ((name, version), licence) in tree(&["--workspace", "--edges", "normal,build"]) {
        assert!(
            is_allowed(&licence, &allowed),
            "{name} {version}: {licence}"
        );
    }
}

#[test]
fn packages_exist_once_and_come_from_the_registry() {
    let rules = toml_file("deny.toml");
    let skipped = texts(&rules["bans"]["skip"]);
    let mut seen = BTreeSet::new();
    for ((name, version), source) in locked() {
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert_eq!(source, registry, "{name}");
        let is_new =
            skipped.contains(&format!("{name}@{version}").as_str()) || seen.insert(name.clone());
        assert!(is_new, "{name} exists twice");
    }
}

/// The numbers of a version; one before a release is as that release.
fn numbers(version: &str) -> [u64; 3] {
    let release = version.split(['-', '+']).next().unwrap();
    let mut parts = release.split('.').map(|part| part.trim().parse().unwrap());
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

/// Whether a version meets requirements such as `>= 1.2, < 2`.
fn meets(version: [u64; 3], requirements: &str) -> bool {
    requirements.split(',').all(|requirement| {
        let requirement = requirement.trim();
        let begin = requirement.find(|c: char| c.is_ascii_digit()).unwrap();
        let (operator, bound) = (requirement[..begin].trim(), numbers(&requirement[begin..]));
        let is_alike = || match bound {
            [0, 0, _] => version == bound,
            [0, minor, _] => version[..2] == [0, minor],
            [major, ..] => version[0] == major,
        };
        match operator {
            ">=" => version >= bound,
            ">" => version > bound,
            "<" => version < bound,
            "<=" => version <= bound,
            "=" => version == bound,
            "^" | "" => version >= bound && is_alike(),
            other => panic!("{other}"),
        }
    })
}

#[test]
fn no_package_has_a_known_defect() {
    assert!(
        meets([1, 2, 3], ">= 1.2, < 2") && !meets([0, 9, 0], "^0.8.1") && meets([0, 8, 4], "0.8.1")
    );
    let advisories = toml_file(".ci/advisories.toml");
    let advisories = advisories["advisory"].as_array().unwrap();
    assert!(advisories.len() > 30);
    for (name, version) in locked().keys() {
        for advisory in advisories
            .iter()
            .filter(|a| a["package"].as_str() == Some(name))
        {
            let is_sound = texts(&advisory["sound"])
                .iter()
                .any(|sound| meets(numbers(version), sound));
            assert!(is_sound, "{name} {version}: {}", advisory["id"]);
        }
    }
}

fn name_and_version(package: &serde_json::Value) -> (String, String) {
    let text = |key: &str| package[key].as_str().unwrap().to_owned();
    (text("name"), text("version"))
}

#[test]
fn the_notices_name_what_is_linked() {
    let notices = fs::read_to_string(root().join("THIRD_PARTY.md")).unwrap();
    for ((name, version), licence) in tree(&["-p", "haversack-cli", "--edges", "normal"]) {
        let line = format!("| {name} | {version} | {licence} |");
        assert!(
            notices.contains(&line),
            "{line} is missing: run .ci/notices"
        );
    }
    let locked = locked();
    let vendored = root().join("crates/server/src/page/vendor/vendored.json");
    let vendored = serde_json::from_slice(&fs::read(vendored).unwrap()).unwrap();
    let vendored: Vec<(String, String)> = match vendored {
        serde_json::Value::Array(packages) => packages.iter().map(name_and_version).collect(),
        other => panic!("{other}"),
    };
    let rows = notices
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| package"));
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let package = (cells[1].to_owned(), cells[2].to_owned());
        // A package of the lock file, or of the page.
        let is_known = locked.contains_key(&package) || vendored.contains(&package);
        assert!(is_known, "{row}: run .ci/notices");
    }
}
