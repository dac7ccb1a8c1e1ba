//! A browser without a window, asked through WebDriver: what people do with a page, and what they see.

use super::PATIENCE;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// Chromium, for as long as this lives.
pub struct Browser {
    driver: Child,
    agent: ureq::Agent,
    session: String,
}

impl Browser {
    /// `None`, said loudly, where there is none.
    pub fn start() -> Option<Browser> {
        let started = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut driver) = started else {
            println!("SKIPPED: chromedriver is not here; Debian has it as chromium-driver");
            return None;
        };
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let port = line.split_once("successfully on port ")?.1;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // Later output is not read.
        std::thread::spawn(move || lines.for_each(drop));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .proxy(None)
            .build()
            .new_agent();
        let mut browser = Browser {
            driver,
            agent,
            session: format!("http://127.0.0.1:{}/session", port.unwrap()),
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1440,900",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": PATIENCE.as_millis() as u64 },
        } } });
        let made = browser.post("", &wanted);
        let id = made["sessionId"].as_str().unwrap();
        browser.session = format!("{}/{id}", browser.session);
        Some(browser)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let url = format!("{}{path}", self.session);
        let request = self.agent.post(&url).content_type("application/json");
        let mut answer = request.send(&body.to_string()).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let mut told: Value = serde_json::from_str(&text).unwrap();
        assert!(answer.status().is_success(), "{path} {body}: {text}");
        told["value"].take()
    }

    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// What a script returns; `arguments` are its arguments.
    pub fn run(&self, script: &str, arguments: Value) -> Value {
        let body = json!({ "script": script, "args": arguments });
        self.post("/execute/sync", &body)
    }

    /// Text of the first that is found; `null` where there is none.
    pub fn text(&self, css: &str) -> Value {
        let script = "return document.querySelector(arguments[0])?.textContent ?? null";
        self.run(script, json!([css]))
    }

    pub fn count(&self, css: &str) -> u64 {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.run(script, json!([css])).as_u64().unwrap()
    }

    /// Looks again and again, until it is so.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Browser) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            if began.elapsed() > PATIENCE {
                let page = self.text("body");
                panic!(
                    "{what}: not after {PATIENCE:?}: {page}; {:?}",
                    self.problems()
                );
            }
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    /// Keys, pressed one after the other, wherever the focus is.
    pub fn press(&self, keys: &str) {
        let presses: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keys", "actions": presses }] });
        self.post("/actions", &actions);
    }

    /// Goes on with the tabulator until this has the focus.
    pub fn tab_to(&self, css: &str) {
        for _ in 0..60 {
            let script = "return document.activeElement?.matches(arguments[0]) ?? false";
            if self.run(script, json!([css])) == json!(true) {
                return;
            }
            self.press(TAB);
        }
        panic!("{css} cannot be reached with the tabulator");
    }

    /// A click where it is, as a pointer does it: not on what something else covers.
    pub fn click(&self, css: &str) {
        let id = self.find(css);
        self.post(&format!("/element/{id}/click"), &json!({}));
    }

    /// WebDriver's name of an element.
    fn find(&self, css: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": css });
        let found = self.post("/element", &wanted);
        let id = found.as_object().unwrap().values().next().unwrap();
        id.as_str().unwrap().to_owned()
    }

    /// Chooses a file in a field for files.
    pub fn choose(&self, css: &str, file: &str) {
        let id = self.find(css);
        self.post(&format!("/element/{id}/value"), &json!({ "text": file }));
    }

    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.post("/goog/cdp/execute", &body)
    }

    pub fn set_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    pub fn set_size(&self, width: u64, height: u64, is_phone: bool) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.devtools("Emulation.setDeviceMetricsOverride", size);
    }

    /// What the browser has to complain of since this was last asked.
    pub fn problems(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().unwrap().iter();
        let bad = entries.filter(|entry| entry["level"] != "INFO" && entry["level"] != "DEBUG");
        bad.map(|entry| entry["message"].to_string()).collect()
    }

    /// A picture of what is seen, if `$HAVERSACK_SCREENSHOTS` names a folder for it.
    pub fn keep(&self, name: &str) {
        use base64::prelude::{BASE64_STANDARD, Engine};
        let Some(folder) = std::env::var_os("HAVERSACK_SCREENSHOTS") else {
            return;
        };
        let shot = self.devtools("Page.captureScreenshot", json!({}));
        let png = BASE64_STANDARD
            .decode(shot["data"].as_str().unwrap())
            .unwrap();
        let path = std::path::Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, png).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser with the session, and nothing is left of either.
        let _ = self.agent.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
