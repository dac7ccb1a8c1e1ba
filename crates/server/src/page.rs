//! The page at `/`: files that are part of the program. They contain no user data and need no key; the page asks the API
//! for everything it shows, like any other client.

use super::fail::Fail;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

/// Name, content type and text.
const FILES: [(&str, &str, &str); 14] = [
    ("index.html", HTML, include_str!("page/index.html")),
    ("page.css", STYLE, include_str!("page/page.css")),
    ("page.js", SCRIPT, include_str!("page/page.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("attach.js", SCRIPT, include_str!("page/attach.js")),
    ("chat.js", SCRIPT, include_str!("page/chat.js")),
    ("export.js", SCRIPT, include_str!("page/export.js")),
    ("facts.js", SCRIPT, include_str!("page/facts.js")),
    ("markdown.js", SCRIPT, include_str!("page/markdown.js")),
    ("memory.js", SCRIPT, include_str!("page/memory.js")),
    ("message.js", SCRIPT, include_str!("page/message.js")),
    ("saved.js", SCRIPT, include_str!("page/saved.js")),
    ("settings.js", SCRIPT, include_str!("page/settings.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Made elsewhere: where from is in `vendored.json` beside it, its licence in `THIRD_PARTY.md`.
const VENDORED: [(&str, &str, &str); 1] = [(
    "markdown-it.js",
    SCRIPT,
    include_str!("page/vendor/markdown-it.js"),
)];

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Loads these files only, connects to this server only, and is not framed by other pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn index() -> Response {
    of("index.html")
}

pub async fn file(Path(name): Path<String>) -> Response {
    of(&name)
}

/// Whether this path needs no key.
pub fn is_public(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

fn of(name: &str) -> Response {
    let mut files = FILES.iter().chain(&VENDORED);
    let Some((_, kind, text)) = files.find(|(known, ..)| *known == name) else {
        return Fail::not_found().into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program has other files at the same names.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// No inline script or style, nothing from other hosts, and no text that becomes markup or code.
    #[test]
    fn the_files_keep_to_the_policy() {
        for (name, _, text) in FILES.iter().chain(&VENDORED) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                "import(",
                "fetch(\"http",
            ] {
                assert!(!text.contains(word), "{name}: {word}");
            }
        }
        for (name, _, text) in FILES {
            let elsewhere = text.replace("http://www.w3.org/", "");
            assert!(
                !elsewhere.contains("http://") && !elsewhere.contains("https://"),
                "{name}"
            );
        }
        let page = FILES[0].2;
        assert!(
            !page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick=")
        );
        for script in page.split("<script").skip(1) {
            assert!(
                script.contains("src=\"/page/") && script.contains("></script>"),
                "{script}"
            );
        }
        // Every file that one of them asks for exists.
        let known = |name: &str| {
            FILES
                .iter()
                .chain(&VENDORED)
                .any(|(known, ..)| *known == name)
        };
        for part in page.split("\"/page/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(known(name), "{name}");
        }
        for (asks, _, text) in FILES {
            for part in text.split("\"./").skip(1) {
                let name = part.split('"').next().unwrap();
                assert!(known(name), "{asks}: {name}");
            }
        }
    }

    /// What was made elsewhere is what was published there, byte for byte, and its licences are told.
    #[test]
    fn vendored_files_are_what_was_published() {
        let told = include_str!("page/vendor/vendored.json");
        let told: Vec<serde_json::Value> = serde_json::from_str(told).unwrap();
        let notices = concat!(env!("CARGO_MANIFEST_DIR"), "/../../THIRD_PARTY.md");
        let notices = std::fs::read_to_string(notices).unwrap();
        let mut files = 0;
        for one in &told {
            let [name, version, licence] =
                ["name", "version", "licence"].map(|key| one[key].as_str().unwrap());
            let row = format!("| {name} | {version} | {licence} | [");
            assert!(notices.contains(&row), "{row}");
            let Some(file) = one["file"].as_str() else {
                continue;
            };
            let (_, _, text) = VENDORED.iter().find(|(known, ..)| *known == file).unwrap();
            let found = Sha256::digest(text);
            let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(one["sha256"], found, "{file}");
            files += 1;
        }
        assert_eq!(files, VENDORED.len());
    }
}
