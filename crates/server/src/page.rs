//! The page at `/`: files that are part of the program. They hold nothing of anybody, so they need no key; what they show
//! they ask for like every other client.

use super::fail::Fail;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

/// By name: what it is, and its text.
const FILES: [(&str, &str, &str); 7] = [
    (
        "index.html",
        "text/html; charset=utf-8",
        include_str!("page/index.html"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    ),
    ("page.js", SCRIPT, include_str!("page/page.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("talk.js", SCRIPT, include_str!("page/talk.js")),
    ("memory.js", SCRIPT, include_str!("page/memory.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing but these files, nothing inside of other pages, and talk with nobody else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn index() -> Response {
    of("index.html")
}

pub async fn file(Path(name): Path<String>) -> Response {
    of(&name)
}

/// Whether there is anything to protect at this path.
pub fn is_public(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

fn of(name: &str) -> Response {
    let Some((_, kind, text)) = FILES.iter().find(|(known, ..)| *known == name) else {
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

    /// No script or style in the page itself, nothing from elsewhere, and no text that becomes markup.
    #[test]
    fn the_files_keep_to_the_policy() {
        for (name, _, text) in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(word), "{name}: {word}");
            }
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
        // Everything it asks for is there.
        for part in page.split("\"/page/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(FILES.iter().any(|(known, ..)| *known == name), "{name}");
        }
    }
}
