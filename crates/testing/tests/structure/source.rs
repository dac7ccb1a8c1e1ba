//! Product sources as data: which files there are, what each defines, and which other files it names.
//!
//! Read as text, not compiled: comments, strings and items behind `#[cfg(test)]` are cut out, then `use` trees and paths
//! are resolved through modules and re-exports to the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One file of `crates/CRATE/src`.
pub struct Source {
    pub krate: String,
    /// From the root of the workspace.
    pub path: PathBuf,
    /// Its module: `[]` is the root of its crate.
    pub module: Vec<String>,
    /// As it stands.
    pub text: String,
    /// Without comments, strings and tests.
    pub code: String,
    /// Names it defines at its top level.
    defines: BTreeSet<String>,
    uses: Vec<Use>,
}

/// One name that a `use` brings in.
struct Use {
    path: Vec<String>,
    alias: String,
    /// A re-export of a module's own children is naming, not use.
    is_public: bool,
}

pub struct Sources {
    pub files: Vec<Source>,
    /// (crate, module) to an index of `files`.
    modules: BTreeMap<(String, Vec<String>), usize>,
}

impl Sources {
    /// Every product crate below `root`; `crates/testing` is none.
    pub fn read(root: &Path) -> Sources {
        let mut files = Vec::new();
        for path in super::sources(&root.join("crates")) {
            let relative = path.strip_prefix(root).unwrap().to_path_buf();
            let parts: Vec<&str> = relative.iter().map(|p| p.to_str().unwrap()).collect();
            if parts[2] != "src" || parts[1] == "testing" {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            files.push(Source::new(parts[1], &parts[3..], relative.clone(), text));
        }
        Sources::of(files)
    }

    fn of(files: Vec<Source>) -> Sources {
        // Modules behind `#[cfg(test)] mod name;` are tests.
        let tests: BTreeSet<(String, Vec<String>)> = files
            .iter()
            .flat_map(|file| {
                test_modules(&super::code(&file.text))
                    .into_iter()
                    .map(|name| {
                        let module = file.module.iter().cloned().chain([name]).collect();
                        (file.krate.clone(), module)
                    })
            })
            .collect();
        let is_test = |file: &Source| {
            (1..=file.module.len())
                .any(|n| tests.contains(&(file.krate.clone(), file.module[..n].to_vec())))
        };
        let files: Vec<Source> = files.into_iter().filter(|file| !is_test(file)).collect();
        let modules = files
            .iter()
            .enumerate()
            .map(|(i, file)| ((file.krate.clone(), file.module.clone()), i))
            .collect();
        Sources { files, modules }
    }

    /// (from, to): file `from` names something that file `to` defines. Within one crate.
    pub fn arrows(&self) -> BTreeSet<(usize, usize)> {
        let mut arrows = BTreeSet::new();
        for (from, file) in self.files.iter().enumerate() {
            let is_module_root = file.path.ends_with("mod.rs") || file.module.is_empty();
            let named = file
                .uses
                .iter()
                .filter(|used| !(used.is_public && is_module_root));
            let named = named.map(|used| used.path.clone()).chain(paths(&file.code));
            for path in named {
                if let Some(to) = self.resolve(from, &path, 0)
                    && to != from
                    && self.files[to].krate == file.krate
                {
                    arrows.insert((from, to));
                }
            }
        }
        arrows
    }

    /// The file that defines what `path` names, as file `at` writes it.
    fn resolve(&self, at: usize, path: &[String], depth: usize) -> Option<usize> {
        let file = &self.files[at];
        let (mut module, mut rest) = (file.module.clone(), path);
        let mut krate = file.krate.clone();
        match rest.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    module.pop()?;
                    rest = &rest[1..];
                }
            }
            other => {
                if let Some(package) = other.strip_prefix("haversack_") {
                    krate = package.to_string();
                    module.clear();
                    rest = &rest[1..];
                }
            }
        }
        let child = |module: &[String], name: &String| {
            let path: Vec<String> = module.iter().cloned().chain([name.clone()]).collect();
            self.modules.get(&(krate.clone(), path)).copied()
        };
        while let Some(name) = rest.first()
            && child(&module, name).is_some()
        {
            module.push(name.clone());
            rest = &rest[1..];
        }
        let found = *self.modules.get(&(krate, module))?;
        let Some(name) = rest.first() else {
            return Some(found);
        };
        if self.files[found].defines.contains(name) {
            return Some(found);
        }
        // A name that the module itself imports or re-exports.
        let through = self.files[found]
            .uses
            .iter()
            .find(|used| used.alias == *name);
        match through {
            Some(used) if depth < 8 && (found != at || used.path != path) => {
                self.resolve(found, &used.path, depth + 1)
            }
            _ if path[0] == "crate" || path[0] == "super" || path[0] == "self" => Some(found),
            _ => None,
        }
    }
}

impl Source {
    fn new(krate: &str, below_src: &[&str], path: PathBuf, text: String) -> Source {
        let mut module: Vec<String> = below_src.iter().map(|part| part.to_string()).collect();
        let last = module.pop().unwrap();
        match last.trim_end_matches(".rs") {
            "mod" | "lib" | "main" => {}
            name => module.push(name.to_string()),
        }
        let code = without_tests(&super::code(&text));
        Source {
            krate: krate.to_string(),
            module,
            defines: top_level_names(&code),
            uses: uses(&code),
            path,
            text,
            code,
        }
    }

    /// (name, fields) of its structs with named fields.
    pub fn structs(&self) -> Vec<(String, usize)> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices("struct ") {
            if self.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &self.code[at + "struct ".len()..];
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let open = rest.find(['{', ';', '(']).unwrap_or(rest.len());
            if !rest[open..].starts_with('{') {
                continue;
            }
            let body = &rest[open + 1..open + closing(&rest[open..])];
            found.push((name, fields(body)));
        }
        found
    }

    /// Types it has inherent `impl`s of.
    pub fn inherent_impls(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for line in top_level_lines(&self.code) {
            let Some(rest) = line.strip_prefix("impl") else {
                continue;
            };
            let rest = match rest.strip_prefix('<') {
                Some(generic) => skip_angles(generic),
                None => rest,
            };
            let head = rest.split('{').next().unwrap_or_default();
            if head.contains(" for ") {
                continue;
            }
            let name = head.trim().rsplit("::").next().unwrap_or_default();
            let name: String = name
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if !name.is_empty() {
                found.insert(name);
            }
        }
        found
    }

    /// Types it makes public to other crates.
    pub fn public_types(&self) -> Vec<String> {
        let kinds = ["struct", "enum", "trait", "type", "union"];
        let mut found = Vec::new();
        for line in top_level_lines(&self.code) {
            let Some(rest) = line.strip_prefix("pub ") else {
                continue;
            };
            let mut words = rest.split_whitespace();
            if kinds.contains(&words.next().unwrap_or_default()) {
                let name = words.next().unwrap_or_default();
                found.push(
                    name.chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect(),
                );
            }
        }
        found
    }
}

/// Lines that begin at depth 0 of braces.
fn top_level_lines(code: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut lines = Vec::new();
    for line in code.lines() {
        if depth == 0 && !line.trim().is_empty() {
            lines.push(line);
        }
        depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
    }
    lines
}

fn top_level_names(code: &str) -> BTreeSet<String> {
    let kinds = [
        "struct",
        "enum",
        "trait",
        "type",
        "union",
        "fn",
        "const",
        "static",
        "macro_rules!",
    ];
    let mut names = BTreeSet::new();
    for line in top_level_lines(code) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(at) = words.iter().position(|word| kinds.contains(word)) {
            // `const fn name`, `const NAME`.
            let at = if words.get(at + 1) == Some(&"fn") {
                at + 1
            } else {
                at
            };
            if let Some(name) = words.get(at + 1) {
                let name = name.trim_start_matches("mut ");
                names.insert(
                    name.chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect(),
                );
            }
        }
    }
    names
}

/// The code without what only tests compile.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item.find(['{', ';']).unwrap_or(item.len() - 1);
        let end = match item[end..].starts_with('{') {
            true => end + closing(&item[end..]) + 1,
            false => end + 1,
        };
        rest = &item[end.min(item.len())..];
    }
    out.push_str(rest);
    out
}

fn test_modules(code: &str) -> Vec<String> {
    code.match_indices("#[cfg(test)]")
        .filter_map(|(at, attribute)| {
            let rest = code[at + attribute.len()..].trim_start();
            let rest = rest.strip_prefix("pub ").unwrap_or(rest);
            let name = rest.strip_prefix("mod ")?;
            let end = name.find([';', '{'])?;
            name[end..]
                .starts_with(';')
                .then(|| name[..end].trim().to_string())
        })
        .collect()
}

/// Where the brace closes that `text` begins with.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 && i > 0 {
            return i;
        }
    }
    text.len() - 1
}

fn skip_angles(text: &str) -> &str {
    let mut depth = 1;
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..i].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[i + 1..];
        }
    }
    ""
}

fn fields(body: &str) -> usize {
    let mut depth = 0_i32;
    let mut count = 0;
    let mut previous = ' ';
    for c in body.chars() {
        match c {
            '{' | '(' | '[' | '<' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            '>' if previous != '-' => depth -= 1,
            ':' if depth == 0 && previous != ':' => count += 1,
            _ => {}
        }
        if c == ':' && previous == ':' && depth == 0 {
            count -= 1;
        }
        previous = c;
    }
    count.max(0) as usize
}

/// Every name that a `use` brings in, trees taken apart.
fn uses(code: &str) -> Vec<Use> {
    let mut found = Vec::new();
    let inline = inline_modules(code);
    for (is_public, at) in starts_of_uses(code) {
        if inline.iter().any(|range| range.contains(&at)) && code[at..].starts_with("super::") {
            continue;
        }
        let statement = &code[at..];
        let end = statement.find(';').unwrap_or(statement.len());
        let tree: String = statement[..end]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        take_apart(&tree, &[], is_public, &mut found);
    }
    found
}

fn starts_of_uses(code: &str) -> Vec<(bool, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        let is_public = trimmed.starts_with("pub");
        let visibility = match trimmed.strip_prefix("pub(") {
            Some(rest) => rest.find(") ").map_or(0, |close| "pub()".len() + close + 1),
            None if is_public => "pub ".len(),
            None => 0,
        };
        let rest = trimmed.get(visibility..).unwrap_or_default();
        let skip = rest.starts_with("use ").then_some(visibility);
        if let Some(skip) = skip {
            found.push((is_public, at + indent + skip + "use ".len()));
        }
        at += line.len();
    }
    found
}

fn take_apart(tree: &str, before: &[String], is_public: bool, found: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut prefix = before.to_vec();
        prefix.extend(
            tree[..open]
                .split("::")
                .map(str::trim)
                .filter(|p| !p.is_empty())
                .map(String::from),
        );
        let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
        let mut depth = 0;
        let mut start = 0;
        for (i, c) in inner.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    take_apart(&inner[start..i], &prefix, is_public, found);
                    start = i + 1;
                }
                _ => {}
            }
        }
        take_apart(&inner[start..], &prefix, is_public, found);
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_string())),
        None => (tree, None),
    };
    let mut parts = before.to_vec();
    parts.extend(path.split("::").map(|part| part.trim().to_string()));
    if parts.len() > 1 && parts.last().is_some_and(|last| last == "self") {
        parts.pop();
    }
    let alias = alias.unwrap_or_else(|| parts.last().cloned().unwrap_or_default());
    found.push(Use {
        path: parts,
        alias,
        is_public,
    });
}

/// Paths in code that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let inline = inline_modules(code);
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let path: String = code[at..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':')
                .collect();
            let mut parts: Vec<String> = path
                .split("::")
                .filter(|part| !part.is_empty())
                .map(String::from)
                .collect();
            // Inside `mod name { … }` the first `super` is this file.
            let depth = inline.iter().filter(|range| range.contains(&at)).count();
            let supers = parts.iter().take_while(|part| *part == "super").count();
            if supers > 0 && depth >= supers {
                continue;
            }
            parts.drain(..depth.min(supers));
            found.push(parts);
        }
    }
    found
}

/// Where `mod name { … }` blocks are.
fn inline_modules(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("mod ") {
        let starts_a_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = &code[at + "mod ".len()..];
        let name = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(0);
        if starts_a_word && name > 0 && rest[name..].trim_start().starts_with('{') {
            let open = at + "mod ".len() + rest.find('{').unwrap_or(0);
            found.push(open..open + closing(&code[open..]));
        }
    }
    found
}

/// Groups of nodes that can reach each other: every circle is inside one.
pub fn circles<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().push(to);
    }
    let reach = |start: &T| {
        let mut seen: BTreeSet<T> = BTreeSet::new();
        let mut open = vec![start];
        while let Some(at) = open.pop() {
            for &to in next.get(at).map_or(&[][..], |to| to) {
                if seen.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&T, BTreeSet<T>> = next.keys().map(|&node| (node, reach(node))).collect();
    let mut found: Vec<BTreeSet<T>> = Vec::new();
    for (&node, seen) in &reached {
        if !seen.contains(node) || found.iter().any(|group| group.contains(node)) {
            continue;
        }
        let back = |other: &&T| reached.get(*other).is_some_and(|from| from.contains(node));
        found.push(seen.iter().filter(back).cloned().collect());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(module: &str, text: &str) -> Source {
        let parts: Vec<&str> = module.split('/').collect();
        Source::new("k", &parts, PathBuf::from(module), text.to_string())
    }

    /// A circle through a re-export is found, and one only through tests or a module's re-exports is none.
    #[test]
    fn circles_are_found_through_re_exports() {
        let files = |b: &str| {
            Sources::of(vec![
                source("lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
                source("a.rs", "use crate::b::B;\npub struct A { b: B }\n"),
                source("b.rs", b),
            ])
        };
        let found = |b| circles(&files(b).arrows()).len();
        assert_eq!(found("pub struct B;\n"), 0);
        assert_eq!(found("use crate::A;\npub struct B;\n"), 1);
        assert_eq!(found("pub struct B;\nfn f(x: &super::a::A) {}\n"), 1);
        assert_eq!(
            found("pub struct B;\n#[cfg(test)]\nmod tests {\n use crate::A;\n}\n"),
            0
        );
    }

    #[test]
    fn structs_impls_and_types_are_counted() {
        let text = "pub struct S<T> {\n a: Vec<(u8, T)>,\n pub b: std::io::Error,\n}\nimpl<T: Copy> S<T> {}\nimpl Clone for S<u8> {}\npub enum E { A { x: u8 } }\nstruct Unit;\n";
        let file = source("s.rs", text);
        assert_eq!(file.structs(), [("S".to_string(), 2)]);
        assert_eq!(file.inherent_impls(), BTreeSet::from(["S".to_string()]));
        assert_eq!(file.public_types(), ["S", "E"]);
    }
}
