//! The page, used as people use it: by a browser, with two conversations at once, by keyboard, on a phone, in the dark.

use crate::common;

use common::browser::{Browser, ENTER, ESCAPE};
use common::server::{Server, content};
use common::{Sandbox, text};
use serde_json::{Value, json};

/// With the sentence encoder, where it was fetched.
pub(crate) fn server(flags: &[&str]) -> Option<Server> {
    let sandbox = Sandbox::with_encoder().unwrap_or_else(Sandbox::alone);
    Server::start_in(sandbox, flags)
}

pub(crate) fn open(browser: &Browser, server: &Server) {
    browser.open(&format!("http://{}/", server.address));
    browser.wait("the page is ready", |b| b.count("body.ready .chat") > 0);
}

/// So that an answer can be foretold, and is long enough to be watched.
fn set(browser: &Browser, temperature: &str, tokens: &str) {
    for (id, value) in [("temperature", temperature), ("max_tokens", tokens)] {
        let script = "document.getElementById(arguments[0]).value = arguments[1]";
        browser.run(script, json!([id, value]));
    }
}

fn chat(name: &str) -> String {
    format!("#chat-{name}")
}

/// Texts of all that was said in a conversation.
fn said(browser: &Browser, name: &str) -> Vec<String> {
    let script = "return [...document.querySelectorAll(arguments[0])].map((p) => p.textContent)";
    let css = format!("{} .words", chat(name));
    let said = browser.run(script, json!([css]));
    let said = said.as_array().unwrap().iter();
    said.map(|one| one.as_str().unwrap().to_owned()).collect()
}

fn is_answering(browser: &Browser, name: &str) -> bool {
    browser.count(&format!("{}.answering", chat(name))) > 0
}

fn wait_for_answer(browser: &Browser, name: &str) {
    browser.wait("an answer", |b| !is_answering(b, name));
}

/// What a button copies.
pub(crate) fn copied(browser: &Browser, css: &str) -> String {
    let script = "
        window.copied = null;
        navigator.clipboard.writeText = async (text) => { window.copied = text; };";
    browser.run(script, json!([]));
    browser.click(css);
    browser.wait("a copy", |b| {
        !b.run("return window.copied", json!([])).is_null()
    });
    let text = browser.run("return window.copied", json!([]));
    text.as_str().unwrap().to_owned()
}

/// Tokens of a strip of the memory view: what its words say, and what is drawn.
fn strip(browser: &Browser, name: &str) -> (u64, u64) {
    let script = "
        const node = document.querySelector(`[data-key='s-${arguments[0]}']`);
        if (!node) return [0, 0];
        const cells = [...node.querySelector('.cells').children];
        const drawn = cells.reduce((sum, cell) => sum + Number(cell.style.flexGrow), 0);
        return [parseInt(node.querySelector('.meta').textContent), drawn];";
    let found = browser.run(script, json!([name]));
    (found[0].as_u64().unwrap(), found[1].as_u64().unwrap())
}

/// Text that is hard to read: what stands out from what is behind it by less than 4.5 to 1.
fn faint(browser: &Browser) -> Value {
    let script = "
        const parts = (color) => color.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b]
            .map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (node) => {
            for (; node; node = node.parentElement) {
                const color = parts(getComputedStyle(node).backgroundColor);
                if (color.length === 3 || color[3] === 1) return color;
            }
            return [255, 255, 255];
        };
        const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const node = walker.currentNode.parentElement;
            const isSeen = node.checkVisibility({ opacityProperty: true }) && node.getClientRects().length;
            if (!walker.currentNode.data.trim() || !isSeen || node.closest(':disabled')) continue;
            const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) found.push(`${ratio.toFixed(1)}: ${walker.currentNode.data}`);
        }
        return found;";
    browser.run(script, json!([]))
}

/// Two conversations by keyboard alone, answered at once, the memory moving meanwhile; stop, fork, recall; heat; a phone;
/// the dark; and nothing that the browser complains of.
#[test]
fn people_use_the_page() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    open(&browser, &server);
    set(&browser, "0", "240");
    let focus = "return document.activeElement.closest('.chat')?.id ?? null";
    assert_eq!(browser.run(focus, json!([])), json!("chat-chat-1"));
    browser.press("Tell me a story about a cat called Miso.");
    browser.press(ENTER);
    browser.tab_to("#new");
    browser.press(ENTER);
    browser.wait("a second card", |b| b.count(".chat") == 2);
    assert_eq!(browser.run(focus, json!([])), json!("chat-chat-2"));
    browser.press("What is the capital of France?");
    browser.press(ENTER);

    // Both at once, side by side.
    let both = |b: &Browser| {
        b.count(".chat.answering") == 2 && strip(b, "chat-1").0 > 0 && strip(b, "chat-2").0 > 0
    };
    browser.wait("two answers at once", both);
    let beside = "const [a, b] = [...document.querySelectorAll('.chat')].map((t) => t.getBoundingClientRect());
        return a.top === b.top && a.right < b.left";
    assert_eq!(browser.run(beside, json!([])), json!(true));
    browser.keep("page-two");

    // The memory moves as tokens come, and draws every one of them.
    let (first, _) = strip(&browser, "chat-1");
    browser.wait("the strip grows", |b| strip(b, "chat-1").0 > first);
    wait_for_answer(&browser, "chat-1");
    wait_for_answer(&browser, "chat-2");
    for name in ["chat-1", "chat-2"] {
        browser.wait("every token is drawn", |b| {
            let (told, drawn) = strip(b, name);
            told > 40 && told == drawn
        });
        let words = said(&browser, name);
        assert!(words.len() == 2 && words[1].len() > 10, "{words:?}");
    }
    let (_, memory) = server.get("/v1/memory");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    let session = &memory["sessions"].as_array().unwrap();
    assert_eq!(session.len(), 2);
    let held = memory["held_bytes"].as_u64().unwrap();
    assert!(held > 1 << 20 && held <= memory["budget_bytes"].as_u64().unwrap());

    // What is said there is what is said anywhere.
    let question = json!([{ "role": "user", "content": "What is the capital of France?" }]);
    let asked =
        json!({ "session_id": "truth", "messages": question, "temperature": 0, "max_tokens": 240 });
    let (status, truth) = server.post("/v1/chat/completions", &asked);
    assert_eq!(status, 200, "{truth}");
    let answer = "#chat-chat-2 .message.assistant:last-child .copy";
    assert_eq!(copied(&browser, answer), content(&truth));

    // Stopped in the middle, by the key for it: what was said stays said, and no more comes.
    set(&browser, "0", "400");
    browser.click("#chat-chat-1 .text");
    browser.press("Now tell me a very long story about the sea.");
    browser.press(ENTER);
    browser.wait("some words", |b| {
        said(b, "chat-1").get(3).is_some_and(|s| s.len() > 20)
    });
    browser.press(ESCAPE);
    wait_for_answer(&browser, "chat-1");
    let stopped = said(&browser, "chat-1");
    assert!(browser.text("#chat-chat-1 .message:last-child .note") == json!("stopped"));
    let cancelled = "haversack_requests_total{end=\"cancelled\"}";
    browser.wait("the server has heard it", |_| server.metric(cancelled) == 1);

    // A fork has all that was said, and goes on alone.
    set(&browser, "0", "24");
    browser.click("#chat-chat-1 .more summary");
    browser.click("#chat-chat-1 .fork");
    browser.wait("the fork", |b| b.count("#chat-chat-1-fork") == 1);
    let told: Vec<String> = said(&browser, "chat-1-fork");
    assert_eq!(told[..3], stopped[..3]);
    assert!(stopped[3].starts_with(told[3].trim()) || told[3].starts_with(stopped[3].trim()));
    browser.press("What is the cat called?");
    browser.press(ENTER);
    wait_for_answer(&browser, "chat-1-fork");
    assert_eq!(said(&browser, "chat-1-fork").len(), 6);
    assert_eq!(said(&browser, "chat-1"), stopped);
    browser.wait("three strips", |b| {
        strip(b, "chat-1-fork").0 > strip(b, "chat-1").0
    });
    let plan = browser.text("[data-key='s-chat-1-fork'] .plan");
    assert!(plan.as_str().unwrap().starts_with("Last plan: "), "{plan}");

    // Its turns, with how relevant they were.
    browser.click("[data-key='s-chat-1-fork'] .turns summary");
    browser.wait("three turns", |b| {
        b.count("[data-key='s-chat-1-fork'] .turns li") == 3
    });
    let oldest = browser.text("[data-key='s-chat-1-fork'] .turns li:last-child .what");
    assert_eq!(oldest, json!("Tell me a story about a cat called Miso."));
    if server.get("/v1/memory").1.contains("\"relevance\":0.") {
        let value = browser.text("[data-key='s-chat-1-fork'] .turns li:last-child .value");
        assert!(value.as_str().unwrap().parse::<f64>().is_ok(), "{value}");
    }

    // A turn is excluded, included and pinned with its buttons.
    let oldest = "[data-key='s-chat-1-fork'] .turns li:last-child";
    let click = |word: &str| {
        let script =
            format!("document.querySelector(\"{oldest} .choices [data-key={word}]\").click()");
        browser.run(&script, json!([]));
    };
    for (word, place) in [
        ("exclude", "excluded"),
        ("include", "hidden"),
        ("pin", "pinned"),
        ("unpin", "visible"),
    ] {
        click(word);
        browser.wait(word, |b| {
            b.text(&format!("{oldest} .place")) == json!(place)
        });
    }
    let told = browser.text("[data-key='s-chat-1-fork'] .turns .told");
    assert_eq!(told, json!("turn 0: it may leave memory again"));

    // Words are text, whatever they look like.
    browser.click("#chat-chat-2 .text");
    browser.press("<img src=x onerror=alert(1)>");
    browser.press(ENTER);
    wait_for_answer(&browser, "chat-2");
    assert_eq!(browser.count(".said img"), 0);
    assert_eq!(said(&browser, "chat-2")[2], "<img src=x onerror=alert(1)>");

    // Heat is told at the top.
    let heat = Server::request("PUT", "/v1/device", "", r#"{"thermal":"serious"}"#);
    assert_eq!(server.raw(&heat).0, 200);
    browser.wait("the banner", |b| {
        b.text("#banner:not([hidden])")
            .as_str()
            .is_some_and(|t| t.starts_with("heat"))
    });
    assert_eq!(server.metric("haversack_alert{name=\"heat\"}"), 1);

    browser.set_dark(false);
    browser.keep("page-light");
    assert_eq!(faint(&browser), json!([]), "in the light");
    browser.set_dark(true);
    browser.keep("page-dark");
    assert_eq!(faint(&browser), json!([]), "in the dark");
    let ground = "return getComputedStyle(document.body).backgroundColor";
    let dark = browser.run(ground, json!([]));
    browser.set_dark(false);
    assert_ne!(browser.run(ground, json!([])), dark);

    // A phone shows one thing at a time, as wide as it is.
    browser.set_size(360, 740, true);
    let wide = "return [document.documentElement.scrollWidth, document.body.scrollWidth]";
    let seen = "return [...document.querySelectorAll('.chat, .memory')].filter((n) => n.checkVisibility()).length";
    for view in 1..=4 {
        browser.click(&format!("#views button:nth-child({view})"));
        assert_eq!(
            browser.run(wide, json!([])),
            json!([360, 360]),
            "view {view}"
        );
        assert_eq!(browser.run(seen, json!([])), json!(1));
        browser.keep(&format!("page-phone-{view}"));
    }
    assert_eq!(browser.problems(), Vec::<String>::new());

    // All of it is there again after the page was left.
    open(&browser, &server);
    browser.wait("three cards", |b| b.count(".chat") == 3);
    assert_eq!(said(&browser, "chat-2").len(), 4);
}

/// Where there is a key the page comes without it, asks for it, and shows nothing before.
#[test]
fn the_page_asks_for_the_key() {
    let sandbox = Sandbox::new();
    let secret = "a-key-for-tests-0123456789";
    let key = sandbox.write("key", secret);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let Some(server) = server(&["--memory", "64M", "--api-key-file", text(&key)]) else {
        return;
    };
    let (status, head, page) = server.raw(&Server::request("GET", "/", "", ""));
    assert!(status == 200 && page.starts_with("<!doctype html>"));
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
    ] {
        assert!(head.contains(header), "{head}");
    }
    assert_eq!(server.get("/page/page.js").0, 200);
    assert_eq!(server.get("/page/../Cargo.toml").0, 404);
    assert_eq!(server.get("/page/nothing").0, 404);
    for path in ["/v1/memory", "/v1/events", "/metrics", "/v1/sessions"] {
        assert_eq!(server.get(path).0, 401, "{path}");
    }
    let foreign = b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(foreign).0, 421);

    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&format!("http://{}/", server.address));
    browser.wait("the field for the key", |b| {
        b.count("#auth:not([hidden])") == 1
    });
    browser.press("wrong-key-0123456789");
    browser.press(ENTER);
    browser.wait("the wrong key", |b| {
        b.text("#banner:not([hidden])") != Value::Null
    });
    assert_eq!(browser.count(".chat"), 0);
    browser.tab_to("#key");
    browser.press(secret);
    browser.press(ENTER);
    browser.wait("the page is ready", |b| b.count("body.ready .chat") == 1);
    assert_eq!(browser.count("#auth:not([hidden])"), 0);
}
