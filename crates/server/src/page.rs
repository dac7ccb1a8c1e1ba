//! The page at `/`: files that are part of the program. They contain no user data and need no key; the page asks the API
//! for everything it shows, like any other client.

use super::fail::Fail;
use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

/// Name, content type and text.
const FILES: [(&str, &str, &str); 7] = [
    ("index.html", HTML, include_str!("page/index.html")),
    ("page.css", STYLE, include_str!("page/page.css")),
    ("page.js", SCRIPT, include_str!("page/page.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("talk.js", SCRIPT, include_str!("page/talk.js")),
    ("memory.js", SCRIPT, include_str!("page/memory.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

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

    /// No inline script or style, nothing from other hosts, and no text that becomes markup.
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
        // Every file it asks for exists.
        for part in page.split("\"/page/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(FILES.iter().any(|(known, ..)| *known == name), "{name}");
        }
    }
}
