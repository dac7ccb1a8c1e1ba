//! Saved chats on the page: Markdown of answers, found and renamed, questions edited and asked again, settings, files,
//! export; and answers that a hostile model could write.

use crate::common;
use crate::page::{copied, open, server};

use common::browser::{Browser, ENTER, ESCAPE};
use common::server::{Server, content};
use common::{Sandbox, text};
use serde_json::{Value, json};

const ROME: &str = "# A walk\n\nSee the **Colosseum** and the [Forum](https://example.org/forum):\n\n\
    1. Start\n   - buy tickets\n2. Walk on\n\n```python\nprint(\"<b>\")\n```\n\n\
    | place | minutes |\n|:--|--:|\n| Forum | 60 |\n\n> Quoted `code`\n";

const HOSTILE: &str = "<script>window.bad = 1</script><img src=x onerror=\"window.bad = 1\">\n\n\
    [a](javascript:window.bad=1) [b](data:text/html,x) [c](vbscript:x) [d](/v1/sessions) [j](ftp://x/) [k](intent://x) [l](blob:http://x/y) <javascript:alert(1)>\n\n\
    ![e](http://127.0.0.1:9/picture.png) [f](https://example.org/?q=<script>) [g](mailto:a@example.org)\n\n\
    [h]: javascript:window.bad=1\n\n[h] <a href=\"javascript:window.bad=1\">i</a> <iframe src=/></iframe>\n\n\
    ```\"><script>window.bad = 1</script>\n</code><script>window.bad = 1</script>\n```\n";

/// A saved chat in which this was said.
fn keep(server: &Server, name: &str, turns: &[(&str, &str)]) {
    let turn = |(question, answer): &(&str, &str)| {
        let says = |role, content: &str| json!({ "role": role, "content": content });
        [says("user", question), says("assistant", answer)]
    };
    let mut messages: Vec<Value> = turns.iter().flat_map(turn).collect();
    messages.push(json!({ "role": "user", "content": "Thank you." }));
    let request =
        json!({ "session_id": name, "messages": messages, "max_tokens": 1, "temperature": 0 });
    let (status, answer) = server.post("/v1/chat/completions", &request);
    assert_eq!(status, 200, "{answer}");
}

fn turns(server: &Server, name: &str) -> Vec<Value> {
    let (status, shown) = server.get(&format!("/v1/sessions/{name}"));
    assert_eq!(status, 200, "{shown}");
    let mut shown: Value = serde_json::from_str(&shown).unwrap();
    let Value::Array(turns) = shown["turns"].take() else {
        panic!("{shown}")
    };
    turns
}

fn names(browser: &Browser) -> Value {
    let script = "return [...document.querySelectorAll('#saved-list .name')].map((n) => n.textContent).sort()";
    browser.run(script, json!([]))
}

/// Replaces what a field has.
fn fill(browser: &Browser, css: &str, words: &str) {
    let script =
        "const field = document.querySelector(arguments[0]); field.focus(); field.select()";
    browser.run(script, json!([css]));
    browser.press(words);
}

fn open_saved(browser: &Browser, name: &str) {
    browser.click("#saved summary");
    browser.wait("the saved chats", |b| b.count("#saved-list .open") > 0);
    let script = "[...document.querySelectorAll('#saved-list .open')]
        .find((n) => n.firstChild.textContent === arguments[0]).click()";
    browser.run(script, json!([name]));
    browser.wait("the chat", |b| {
        b.count(&format!("#chat-{name} .message")) > 0
    });
}

fn wait_until_answered(browser: &Browser, name: &str) {
    browser.wait("an answer", |b| {
        b.count(&format!("#chat-{name}.answering")) == 0
            && b.count(&format!("#chat-{name} .message")) > 0
    });
}

#[test]
fn saved_chats_are_found_read_and_changed() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    keep(&server, "rome", &[("Tell me about Rome.", ROME)]);
    keep(
        &server,
        "shopping",
        &[("What do I buy?", "Bread and milk.")],
    );
    open(&browser, &server);
    browser.keep("page-start");

    // Found by words of an answer, then by its name.
    browser.click("#saved summary");
    browser.wait("both chats", |b| names(b) == json!(["rome", "shopping"]));
    browser.press("MILK bread");
    browser.wait("one chat", |b| names(b) == json!(["shopping"]));
    let found = browser.text("#saved-list .found");
    assert!(
        found.as_str().unwrap().contains("Bread and milk."),
        "{found}"
    );
    browser.keep("page-saved");
    fill(&browser, "#search", "nowhere");
    browser.wait("no chat", |b| {
        b.text("#saved-told") == json!("No saved chat has these words.")
    });
    fill(&browser, "#search", "shop");
    browser.wait("its name", |b| names(b) == json!(["shopping"]));

    // Renamed, by keyboard.
    browser.tab_to("#saved-list [aria-label='Rename shopping']");
    browser.press(ENTER);
    browser.wait("the field", |b| b.count("#saved-list input:focus") == 1);
    browser.press("rome");
    browser.press(ENTER);
    browser.wait("a taken name", |b| {
        b.text("#saved-told") == json!("There is a chat named rome already.")
    });
    fill(
        &browser,
        "#saved-list input",
        "The week's groceries: für Anna",
    );
    browser.press(ENTER);
    let new = "The-weeks-groceries-fur-Anna";
    browser.wait("the new name", |b| {
        b.text("#saved-told") == json!(format!("shopping is now {new}."))
    });
    assert_eq!(server.get("/v1/sessions/shopping").0, 404);
    assert_eq!(turns(&server, new)[0]["answer"], "Bread and milk.");
    browser.press(ESCAPE);
    assert_eq!(browser.count("#saved[open]"), 0);

    // Deleted, with a second press only.
    browser.click("#saved summary");
    fill(&browser, "#search", "groceries");
    browser.wait("its name", |b| names(b) == json!([new]));
    browser.click("#saved-list .choices button:last-child");
    assert_eq!(server.get(&format!("/v1/sessions/{new}")).0, 200);
    browser.click("#saved-list .choices button:last-child");
    browser.wait("nothing", |b| names(b) == json!([]));
    assert_eq!(server.get(&format!("/v1/sessions/{new}")).0, 404);
    fill(&browser, "#search", "\u{e003}");
    browser.press(ESCAPE);

    // Read: Markdown, with what it is made of. The unused chat makes way.
    open_saved(&browser, "rome");
    assert_eq!(browser.count(".chat"), 1);
    let answer = "#chat-rome .message.assistant";
    for (css, words) in [
        ("h3", "A walk"),
        ("strong", "Colosseum"),
        ("ol > li > ul > li", "buy tickets"),
        (".code pre code", "print(\"<b>\")\n"),
        (".code-head span", "python"),
        ("td.right", "60"),
        ("blockquote code", "code"),
    ] {
        assert_eq!(
            browser.text(&format!("{answer} {css}")),
            json!(words),
            "{css}"
        );
    }
    let script = "const a = document.querySelector(arguments[0]); return [a.href, a.target, a.rel.includes('noopener')]";
    assert_eq!(
        browser.run(script, json!([format!("{answer} a")])),
        json!(["https://example.org/forum", "_blank", true])
    );
    assert_eq!(
        copied(&browser, &format!("{answer} .copy-code")),
        "print(\"<b>\")\n"
    );
    let whole = copied(&browser, &format!("{answer} > .actions .copy"));
    assert_eq!(whole.trim(), ROME.trim());
    browser.keep("page-markdown");

    // Renamed where it is open.
    browser.click("#chat-rome .more summary");
    browser.click("#chat-rome .name-it");
    browser.press("Rome again");
    browser.press(ENTER);
    browser.wait("the new name", |b| {
        b.text("#chat-Rome-again .name") == json!("Rome-again")
    });
    assert_eq!(turns(&server, "Rome-again").len(), 2);

    // A new chat can be typed in at once, and does not go on with one that another window has begun meanwhile.
    browser.click("#settings summary");
    fill(&browser, "#max_tokens", "4");
    browser.press(ESCAPE);
    browser.click("#new");
    browser.press("Hello you.");
    keep(&server, "chat-1", &[("One?", "Two.")]);
    browser.press(ENTER);
    browser.wait("another name", |b| b.count("#chat-chat-2 .message") == 2);
    wait_until_answered(&browser, "chat-2");
    assert_eq!(turns(&server, "chat-2")[0]["question"], "Hello you.");
    assert_eq!(turns(&server, "chat-1").len(), 2);
    assert_eq!(browser.problems(), Vec::<String>::new());
}

#[test]
fn questions_are_edited_and_asked_again() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    open(&browser, &server);

    // Settings: what suits the model is shown, what is set is obeyed and remembered.
    let (_, models) = server.get("/v1/models");
    let models: Value = serde_json::from_str(&models).unwrap();
    let suits = &models["data"][0]["sampling"];
    browser.click("#settings summary");
    let shown = "return document.getElementById(arguments[0]).placeholder";
    for name in ["temperature", "top_p", "max_tokens"] {
        assert_eq!(
            browser.run(shown, json!([name])),
            json!(suits[name].to_string())
        );
    }
    fill(&browser, "#temperature", "0");
    fill(&browser, "#max_tokens", "7");
    browser.keep("page-settings");
    browser.press(ESCAPE);
    let ask = |words: &str| {
        browser.click("#chat-chat-1 .text");
        browser.press(words);
        browser.press(ENTER);
        wait_until_answered(&browser, "chat-1");
    };
    ask("Tell me a long story.");
    let note = browser.text("#chat-chat-1 .message.assistant:last-child .note");
    assert!(
        note.as_str()
            .unwrap()
            .ends_with("stopped at the maximum length"),
        "{note}"
    );
    open(&browser, &server);
    browser.wait("the chat", |b| b.count("#chat-chat-1 .message") == 2);
    let value = "return document.getElementById(arguments[0]).value";
    assert_eq!(browser.run(value, json!(["max_tokens"])), json!("7"));

    // The last question can be changed, and left as it was.
    ask("What is the capital of France?");
    assert_eq!(turns(&server, "chat-1").len(), 2);
    let edits = "return [...document.querySelectorAll('.edit, .again')].filter((b) => b.checkVisibility()).length";
    assert_eq!(browser.run(edits, json!([])), json!(2));
    browser.click("#chat-chat-1 .message:nth-last-child(2) .edit");
    let composed = "return document.querySelector('#chat-chat-1 .text').value";
    assert_eq!(
        browser.run(composed, json!([])),
        json!("What is the capital of France?")
    );
    browser.press(ESCAPE);
    assert_eq!(browser.run(composed, json!([])), json!(""));
    browser.click("#chat-chat-1 .message:nth-last-child(2) .edit");
    fill(
        &browser,
        "#chat-chat-1 .text",
        "What is the capital of Italy?",
    );
    browser.press(ENTER);
    wait_until_answered(&browser, "chat-1");
    let after = turns(&server, "chat-1");
    assert_eq!(after.len(), 2);
    assert_eq!(after[1]["question"], "What is the capital of Italy?");
    assert_eq!(browser.count("#chat-chat-1 .message"), 4);

    // Asked again: another answer in place of the last, here the same one.
    browser.click("#chat-chat-1 .message:last-child .again");
    wait_until_answered(&browser, "chat-1");
    let again = turns(&server, "chat-1");
    assert_eq!(again.len(), 2);
    assert_ne!(again[1]["number"], after[1]["number"]);
    assert_eq!(again[1]["answer"], after[1]["answer"]);
    let copy = "#chat-chat-1 .message.assistant:last-child .copy";
    assert_eq!(json!(copied(&browser, copy)), again[1]["answer"]);

    // An answer that was stopped can be asked again as well.
    browser.click("#settings summary");
    fill(&browser, "#max_tokens", "300");
    browser.press(ESCAPE);
    browser.click("#chat-chat-1 .text");
    browser.press("Tell me a very long story about the sea.");
    browser.press(ENTER);
    browser.wait("some words", |b| {
        let words = b.text("#chat-chat-1 .message.assistant:last-child .words");
        words.as_str().is_some_and(|words| words.len() > 10)
    });
    browser.press(ESCAPE);
    wait_until_answered(&browser, "chat-1");
    browser.click("#settings summary");
    fill(&browser, "#max_tokens", "5");
    browser.press(ESCAPE);
    browser.click("#chat-chat-1 .message:last-child .again");
    browser.wait("a short answer", |b| {
        let note = b.text("#chat-chat-1 .message.assistant:last-child .note");
        note.as_str()
            .is_some_and(|note| note.ends_with("stopped at the maximum length"))
    });
    let stopped = turns(&server, "chat-1");
    assert_eq!(stopped.len(), 3);
    assert_eq!(
        stopped[2]["question"],
        "Tell me a very long story about the sea."
    );

    // A chat that another window went on with is not touched.
    let question = json!([{ "role": "user", "content": "Thank you." }]);
    let elsewhere = json!({ "session_id": "chat-1", "messages": question, "max_tokens": 2 });
    let (status, answer) = server.post("/v1/chat/completions", &elsewhere);
    assert_eq!((status, content(&answer).is_empty()), (200, false));
    browser.click("#chat-chat-1 .message:last-child .again");
    browser.wait("a refusal", |b| {
        let words = b.text("#chat-chat-1 .problem:not([hidden])");
        words
            .as_str()
            .is_some_and(|words| words.contains("another window"))
    });
    assert_eq!(turns(&server, "chat-1").len(), 4);
    browser.click("#settings summary");
    browser.click("#usual");
    assert_eq!(browser.run(value, json!(["max_tokens"])), json!(""));
    assert_eq!(browser.problems(), Vec::<String>::new());
}

/// A saved chat lists its facts, those that were found in the background too; they are changed and deleted there.
#[test]
fn facts_are_listed_changed_and_deleted() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    open(&browser, &server);
    browser.click("#chat-chat-1 .opening summary");
    browser.click("#chat-chat-1 .auto-facts");
    browser.click("#chat-chat-1 .text");
    browser.press("I work as a nurse in Ghent.");
    browser.press(ENTER);
    wait_until_answered(&browser, "chat-1");
    let facts = |b: &Browser| b.text("#chat-chat-1 .known");
    let has = |b: &Browser, words: &str| facts(b).as_str().unwrap().contains(words);
    browser.wait("a fact that was found", |b| {
        has(b, "The user said: I work as a nurse in Ghent.") && has(b, "(turn 0)")
    });
    browser.keep("page-facts");
    browser.click("#chat-chat-1 .known .edit");
    fill(
        &browser,
        "#chat-chat-1 .known input",
        "The user is a nurse.",
    );
    browser.press(ENTER);
    browser.wait("another text", |b| {
        has(b, "The user is a nurse.") && has(b, "(turn 0)") && !has(b, "Ghent")
    });
    browser.click("#chat-chat-1 .known .delete");
    browser.wait("no fact", |b| !has(b, "nurse"));
    let (_, shown) = server.get("/v1/sessions/chat-1");
    assert!(!shown.contains("The user"), "{shown}");
}

#[test]
fn files_go_in_and_chats_come_out() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    open(&browser, &server);
    browser.click("#settings summary");
    fill(&browser, "#max_tokens", "4");
    browser.press(ESCAPE);
    let sandbox = Sandbox::new();
    let notes = sandbox.write("notes.txt", "The meeting is at noon.\n```\n");
    let picture = sandbox.write("picture.png", [0x89, b'P', 0, 0xff]);
    browser.choose("#chat-chat-1 .chosen", text(&picture));
    browser.wait("a refusal", |b| {
        b.text("#chat-chat-1 .problem:not([hidden])") == json!("picture.png is not a text file.")
    });
    browser.choose("#chat-chat-1 .chosen", text(&notes));
    browser.wait("the file", |b| b.count("#chat-chat-1 .files li") == 1);
    browser.keep("page-attached");
    browser.press("When is the meeting?");
    browser.press(ENTER);
    wait_until_answered(&browser, "chat-1");
    let asked =
        "File notes.txt:\n\n````txt\nThe meeting is at noon.\n```\n````\n\nWhen is the meeting?";
    let said = turns(&server, "chat-1");
    assert_eq!(said[0]["question"], asked);
    assert_eq!(
        browser.text("#chat-chat-1 .file summary"),
        json!("notes.txt")
    );
    assert_eq!(
        browser.text("#chat-chat-1 .file pre"),
        json!("The meeting is at noon.\n```")
    );
    assert_eq!(
        browser.text("#chat-chat-1 .user .plain"),
        json!("When is the meeting?")
    );
    assert_eq!(browser.count("#chat-chat-1 .files li"), 0);

    // Saved by the browser, as Markdown and as JSON.
    let export = |kind: &str| {
        let script = "
            window.exported = null;
            const make = URL.createObjectURL;
            URL.createObjectURL = (blob) => {
                blob.text().then((text) => { window.exported = text; });
                return make.call(URL, blob);
            };";
        browser.run(script, json!([]));
        browser.click("#chat-chat-1 .more summary");
        browser.click(&format!("#chat-chat-1 .{kind}"));
        let exported = || browser.run("return window.exported", json!([]));
        browser.wait("a file", |_| !exported().is_null());
        exported().as_str().unwrap().to_owned()
    };
    let page = export("markdown");
    let answer = said[0]["answer"].as_str().unwrap();
    let turn = format!("**User**\n\n{asked}\n\n**Assistant**\n\n{answer}\n");
    assert!(
        page.starts_with("# Session chat-1\n\n") && page.ends_with(&turn),
        "{page}"
    );
    let exported: Value = serde_json::from_str(&export("json")).unwrap();
    assert_eq!(exported["name"], "chat-1");
    assert_eq!(exported["turns"][0]["question"], asked);
    assert_eq!(exported["turns"][0]["answer"], answer);
    assert_eq!(browser.problems(), Vec::<String>::new());
}

/// What a hostile model writes is text: nothing of it runs, loads or leads astray, and none of it takes long.
#[test]
fn a_hostile_answer_does_nothing() {
    let (Some(browser), Some(server)) = (Browser::start(), server(&["--memory", "200M"])) else {
        return;
    };
    keep(&server, "hostile", &[(HOSTILE, HOSTILE)]);
    open(&browser, &server);
    open_saved(&browser, "hostile");
    let made = "#chat-hostile .said";
    for tag in [
        "script",
        "img",
        "iframe",
        "object",
        "style",
        "svg",
        "[onerror]",
        "[style]",
    ] {
        assert_eq!(browser.count(&format!("{made} {tag}")), 0, "{tag}");
    }
    let links = "return [...document.querySelectorAll(arguments[0])].map((a) => [a.protocol, a.rel.includes('noopener')])";
    assert_eq!(
        browser.run(links, json!([format!("{made} a")])),
        json!([["http:", true], ["https:", true], ["mailto:", true]])
    );
    assert_eq!(
        browser
            .text(&format!("{made} .user .plain"))
            .as_str()
            .unwrap()
            .trim(),
        HOSTILE.trim()
    );
    assert_eq!(
        browser.text(&format!("{made} .assistant code")),
        json!("</code><script>window.bad = 1</script>\n")
    );

    // Every kind of nesting, a megabyte of it, and as much as is still taken for Markdown.
    let script = "return (async () => {
        const { draw } = await import('/page/markdown.js');
        const kinds = ['>', '> ', '- ', '1. ', '[', '![', '*', '**a *b ', '_a', '`a', '<a', '[a](', '[a](<', '~~', '\\\\',
            '&', '|', '> - ', '[a]: b\\n', 'a\\n=\\n', '-\\n', '1.\\n>', '```\\n', '*[_`', '<!--', '<![CDATA['];
        const table = 'a|b\\n-|-\\n';
        const node = document.createElement('div');
        document.body.append(node);
        let slowest = [0, ''];
        for (const size of [1 << 20, 65536, 5000]) {
            for (const [begin, kind] of [...kinds.map((kind) => ['', kind]), [table, 'x\\n']]) {
                const began = performance.now();
                draw(begin + kind.repeat(size / kind.length), node);
                node.getBoundingClientRect();
                const took = performance.now() - began;
                if (took > slowest[0]) slowest = [took, `${size} ${kind}`];
                let depth = 0;
                for (let at = node; at; at = at.lastElementChild) depth += 1;
                if (depth > 60) return [depth, kind];
            }
        }
        node.remove();
        return slowest;
    })()";
    let slowest = browser.run(script, json!([]));
    println!("the slowest to draw, in milliseconds: {slowest}");
    assert!(slowest[0].as_f64().unwrap() < 10_000.0, "{slowest}");
    assert_eq!(
        browser.run("return window.bad ?? null", json!([])),
        Value::Null
    );
    assert_eq!(browser.problems(), Vec::<String>::new());
}
