//! Thirty everyday questions, as a first user would ask them: the best default model answers at least 27. Part of the long form
//! (`.ci/long questions`); the smallest one is asked too, for comparison.
//!
//! An answer is right if one of the accepted phrases is in it, word by word, in any case.

use crate::common;
use common::{Sandbox, model, text};
use haversack_testing::quota::is_long;

const RIGHT_MIN: usize = 27;

const QUESTIONS: [(&str, &[&str]); 30] = [
    ("What is the capital of France?", &["paris"]),
    ("How many days are there in a leap year?", &["366"]),
    ("What is 17 + 26?", &["43"]),
    ("Which planet is closest to the Sun?", &["mercury"]),
    ("Who wrote Romeo and Juliet?", &["shakespeare"]),
    (
        "At how many degrees Celsius does water boil at sea level?",
        &["100"],
    ),
    ("What is the opposite of \"cold\"?", &["hot", "warm"]),
    (
        "How do you say \"good morning\" in Spanish?",
        &["buenos días", "buenos dias"],
    ),
    (
        "What colour do you get when you mix blue and yellow paint?",
        &["green"],
    ),
    ("How many minutes are there in two hours?", &["120"]),
    ("What is the largest ocean on Earth?", &["pacific"]),
    ("What do bees make that people eat?", &["honey"]),
    ("What is the past tense of the verb \"go\"?", &["went"]),
    (
        "Which language do most people in Brazil speak?",
        &["portuguese"],
    ),
    ("What is the chemical formula of water?", &["h2o", "h₂o"]),
    ("How many legs does a spider have?", &["8", "eight"]),
    (
        "A train leaves at 3:15 pm and the trip takes 50 minutes. When does it arrive?",
        &["4 05"],
    ),
    (
        "What is the largest animal that lives today?",
        &["blue whale"],
    ),
    ("On which continent is Egypt?", &["africa"]),
    ("What is 15 percent of 200?", &["30"]),
    (
        "Correct the spelling of the word \"recieve\".",
        &["receive"],
    ),
    ("Who painted the Mona Lisa?", &["leonardo", "da vinci"]),
    ("What is the currency of Japan?", &["yen"]),
    ("Which month comes after September?", &["october"]),
    ("How many centimetres are there in a metre?", &["100"]),
    (
        "Sort these numbers from the smallest to the largest: 9, 2, 5.",
        &["2 5 9"],
    ),
    ("What is the plural of \"mouse\", the animal?", &["mice"]),
    (
        "I have 3 apples, eat one and buy four more. How many apples do I have now?",
        &["6", "six"],
    ),
    (
        "Which gas do plants take from the air to make sugar?",
        &["carbon dioxide", "co2", "co₂"],
    ),
    ("Which organ pumps blood through the body?", &["heart"]),
];

/// Words and numbers, with single blanks around and between.
fn words(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric();
    let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_lowercase).collect();
    format!(" {} ", words.join(" "))
}

fn is_right(answer: &str, accepted: &[&str]) -> bool {
    let answer = words(answer);
    accepted
        .iter()
        .any(|phrase| answer.contains(&words(phrase)))
}

#[test]
fn answers_are_judged_by_words() {
    assert!(is_right("It arrives at **4:05 PM**.", &["4 05"]));
    assert!(is_right("Buenos\nDías!", &["buenos días"]));
    assert!(!is_right("It is 1366.", &["366"]));
    assert!(!is_right("", &["x"]));
}

/// How many of the questions the model in `file` answers, if it is here.
fn right(file: &str) -> Option<usize> {
    let model = model(file)?;
    let sandbox = Sandbox::shared();
    let mut right = 0;
    for (question, accepted) in QUESTIONS {
        let flags = ["-n", "200", "--json", "--prompt", question];
        let document = sandbox
            .run(&[&["run", text(&model)][..], &flags].concat())
            .json();
        let answer = document["text"].as_str().unwrap();
        let is_right = is_right(answer, accepted);
        right += usize::from(is_right);
        let mark = if is_right { "right" } else { "WRONG" };
        let line: String = answer.split_whitespace().collect::<Vec<_>>().join(" ");
        println!(
            "{mark}  {question}  {}",
            line.chars().take(160).collect::<String>()
        );
    }
    println!("{file}: {right} of {} right\n", QUESTIONS.len());
    Some(right)
}

#[test]
fn the_default_model_answers_everyday_questions() {
    if !is_long() {
        println!("SKIPPED: part of the long form");
        return;
    }
    right("smollm2-135m-instruct-q4_1.gguf");
    if let Some(right) = right("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf") {
        assert!(right >= RIGHT_MIN, "{right} of {} right", QUESTIONS.len());
    }
}
