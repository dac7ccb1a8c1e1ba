//! Two hundred prompts to the smallest model with the sampling that a client gets which asks for none: whatever falls into a
//! loop is ended. Part of the long form (`.ci/long loops`): minutes. Counts are printed and judged.
//!
//! Loops are searched for in the text, not among tokens as the server does: a loop whose copies are cut into tokens
//! differently counts too.

use crate::common;

use common::server::Server;
use haversack_testing::quota::is_long;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const CLIENTS: usize = 4;
const COPIES: usize = 8;

/// Characters of a block at most.
const BLOCK_MAX: usize = 1000;

/// An answer is ended at 128 tokens of a loop. Of text, which the tokens of a word or two make up, that is at most this much.
const ENDED_BY: usize = 1000;

const FORMS: [&str; 10] = [
    "Tell me about TOPIC.",
    "Write a short poem about TOPIC.",
    "List ten facts about TOPIC.",
    "Explain TOPIC to a child.",
    "What is the history of TOPIC?",
    "Write a long story in which TOPIC matters.",
    "Give me a table of things that have to do with TOPIC.",
    "Why do people like TOPIC?",
    "Write a song with a chorus about TOPIC.",
    "Count the uses of TOPIC, one line each.",
];

const TOPICS: [&str; 20] = [
    "bread",
    "lighthouses",
    "the moon",
    "chess",
    "rivers",
    "bees",
    "winter",
    "maps",
    "bicycles",
    "tea",
    "glass",
    "owls",
    "salt",
    "trains",
    "paper",
    "volcanoes",
    "shadows",
    "markets",
    "rope",
    "the number seven",
];

/// Characters of the longest part of a text that is one block at least eight times in a row. Blocks without a letter or digit,
/// such as a rule of dashes, don't count.
fn longest_loop(text: &str) -> usize {
    let all: Vec<char> = text.chars().collect();
    let mut longest = 0;
    for block in 1..=BLOCK_MAX.min(all.len() / COPIES) {
        let mut equal = 0;
        for i in block..all.len() {
            equal = if all[i] == all[i - block] {
                equal + 1
            } else {
                0
            };
            let looped = equal + block;
            let is_word = || all[i + 1 - block..=i].iter().any(|c| c.is_alphanumeric());
            if equal > 0 && looped >= COPIES * block && looped > longest && is_word() {
                longest = looped;
            }
        }
    }
    longest
}

#[test]
fn loops_are_found_in_texts() {
    assert_eq!(longest_loop(&"ab ".repeat(8)), 24);
    assert_eq!(longest_loop(&format!("x{}y", "no more. ".repeat(9))), 81);
    assert_eq!(longest_loop(&"ab ".repeat(7)), 0);
    assert_eq!(longest_loop(&"-".repeat(80)), 0);
    assert_eq!(longest_loop("1. one\n2. two\n3. three\n"), 0);
}

#[test]
fn no_answer_goes_on_in_a_loop() {
    if !is_long() {
        println!("SKIPPED: part of the long form");
        return;
    }
    let Some(server) = Server::start(&["--no-sessions"]) else {
        return;
    };
    let prompts: Vec<String> = (FORMS.iter())
        .flat_map(|form| TOPICS.map(|topic| form.replace("TOPIC", topic)))
        .collect();
    let next = AtomicUsize::new(0);
    let ask = &|| {
        let mut heard = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = prompts.get(n) else {
                return heard;
            };
            let body = json!({ "messages": [{ "role": "user", "content": prompt }], "seed": n });
            let (status, answer) = server.post_slowly("/v1/chat/completions", &body);
            assert_eq!(status, 200, "{answer}");
            heard.push((prompt, answer));
        }
    };
    let answers: Vec<(&String, Value)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    assert_eq!(answers.len(), prompts.len());
    let (mut ended, mut short, mut tokens) = (0, 0, 0);
    for (prompt, answer) in &answers {
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        tokens += answer["usage"]["completion_tokens"].as_u64().unwrap();
        let looped = longest_loop(text);
        if choice["stopped_by"] == "repetition" {
            ended += 1;
            println!("ended after a loop of {looped} characters: {prompt}");
        } else if looped > 0 {
            short += 1;
            println!("a loop of {looped} characters that ended by itself: {prompt}");
            assert!(looped <= ENDED_BY, "{prompt} {text}");
        }
    }
    println!(
        "{} answers of {} tokens on average, {ended} ended for a loop, {short} with a short one",
        answers.len(),
        tokens / answers.len() as u64,
    );
}
