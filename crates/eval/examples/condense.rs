//! What condensing keeps, and what it costs an answer that goes on meanwhile:
//! `cargo run --release -p haversack-eval --example condense -- facts|kept|gaps MODEL.gguf ENCODER-FOLDER [CASES]`
//!
//! `facts`: facts among small talk, some told twice, some taken back, become 300 tokens; each fact is asked for by the
//! log-probability of the right answer among ten. `kept`: the same, and nothing is asked. `gaps`: the time between tokens before, while and after a
//! stream is condensed.

use haversack::encoder::{Encoder, EncoderOptions};
use haversack::run::{Event, GenerateOptions};
use haversack::sample::{SampleOptions, Sampler};
use haversack::session::condense::{Asked, Piece, condense};
use haversack::session::layout::Layout;
use haversack::session::{Embed, Progress, SessionOptions, Sessions};
use haversack::text::tokenizer::EncodeOptions;
use haversack::{Model, Retention, Runtime, RuntimeOptions};
use haversack_eval::choice::{self, Case, Question};
use haversack_eval::dice::Dice;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// Tokens before, and at most after.
const LONG: usize = 700;
const SHORT: usize = 300;
const FACTS: usize = 40;
/// Of the facts, so many are told twice, and so many told wrong first.
const TWICE: usize = 4;
const TAKEN_BACK: usize = 4;

/// Facts of one kind: what they say, what is asked, who they are about, what may be said of them.
struct Kind {
    says: &'static str,
    asks: &'static str,
    who: [&'static str; 6],
    what: [&'static str; 12],
}

const KINDS: [Kind; 7] = [
    Kind {
        says: "The WHO is called",
        asks: "What is the WHO called?",
        who: [
            "dentist", "plumber", "landlord", "gardener", "mayor", "barber",
        ],
        what: [
            "Weber", "Dixon", "Moss", "Hale", "Kent", "Ford", "Lane", "Cole", "Grant", "Hayes",
            "Price", "Shaw",
        ],
    },
    Kind {
        says: "WHO lives in",
        asks: "Where does WHO live?",
        who: ["Anna", "Peter", "Maria", "Oscar", "Julia", "Simon"],
        what: [
            "Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Boston", "Chicago", "Dublin",
            "Tokyo", "Milan", "Moscow",
        ],
    },
    Kind {
        says: "The WHO is",
        asks: "What color is the WHO?",
        who: ["car", "door", "sofa", "umbrella", "fence", "kettle"],
        what: [
            "red", "green", "blue", "yellow", "black", "white", "brown", "purple", "orange",
            "pink", "gray", "silver",
        ],
    },
    Kind {
        says: "WHO plays the",
        asks: "What does WHO play?",
        who: ["Tom", "Lisa", "Frank", "Emma", "Victor", "Clara"],
        what: [
            "piano",
            "violin",
            "guitar",
            "flute",
            "cello",
            "drums",
            "trumpet",
            "harp",
            "organ",
            "banjo",
            "clarinet",
            "saxophone",
        ],
    },
    Kind {
        says: "The WHO is in",
        asks: "When is the WHO?",
        who: ["trip", "wedding", "exam", "concert", "race", "picnic"],
        what: [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ],
    },
    Kind {
        says: "WHO has a pet",
        asks: "What pet does WHO have?",
        who: ["Laura", "David", "Nina", "Robert", "Sophie", "Martin"],
        what: [
            "rabbit", "parrot", "snake", "turtle", "hamster", "lizard", "spider", "goat", "pony",
            "ferret", "mouse", "frog",
        ],
    },
    Kind {
        says: "WHO works as a",
        asks: "What is the job of WHO?",
        who: ["Paul", "Helen", "George", "Alice", "Walter", "Diana"],
        what: [
            "nurse", "lawyer", "baker", "pilot", "teacher", "farmer", "painter", "driver", "judge",
            "waiter", "cook", "tailor",
        ],
    },
];

/// One fact: its kind, who, and what, the right one first.
struct Fact {
    kind: &'static Kind,
    who: &'static str,
    what: Vec<&'static str>,
}

impl Fact {
    fn begins(&self) -> String {
        self.kind.says.replace("WHO", self.who)
    }

    fn says(&self, what: usize) -> String {
        format!("{} {}.", self.begins(), self.what[what])
    }
}

const TALK: [&str; 40] = [
    "Well, it is so nice to sit down for a moment.",
    "How have you been lately?",
    "The weather was lovely this morning, was it not?",
    "I could really do with a cup of coffee right now.",
    "Anyway, where was I?",
    "You know how these things go.",
    "Oh, that reminds me of something funny, but never mind.",
    "Thank you so much for listening to all of this.",
    "I hope you do not mind that I talk so much.",
    "Let me think for a second.",
    "It has been a long day and I am a little tired.",
    "Did you sleep well?",
    "Hello again, and good morning to you!",
    "That was quite a party last Saturday, I must say.",
    "My feet hurt from all the walking.",
    "I was going to say something else, but I forgot.",
    "Time flies, does it not?",
    "We should really meet more often.",
    "There is nothing like a good book on a rainy Sunday.",
    "I suppose that is just how life is.",
    "Honestly, I did not expect that at all.",
    "Please tell me if I am going on too long.",
    "By the way, I like what you did with your hair.",
    "The bus was late again, as always.",
    "Who would have thought?",
    "I had soup for lunch and it was rather good.",
    "Sometimes I just like to look out of the window.",
    "Ha, you should have seen their faces!",
    "It is what it is, as they say.",
    "I am so glad that we are doing this.",
    "The 3 of us laughed until we cried.",
    "December always makes me want to stay in bed.",
    "Okay, let us go on.",
    "I will try to remember what else there was.",
    "What a week it has been!",
    "Some music would be nice now.",
    "I keep forgetting where I put my glasses.",
    "The flowers in the window are doing very well.",
    "That is all I wanted to say about that.",
    "You are very patient with me, really.",
];

/// A text, and what is true at its end.
fn case(number: usize, count: &dyn Fn(&str) -> usize) -> (String, Vec<Fact>) {
    let mut dice = Dice::new(number as u64, &[]);
    let mut facts = Vec::new();
    for kind in &KINDS {
        let mut what = kind.what;
        dice.shuffle(&mut what);
        for (i, who) in kind.who.into_iter().enumerate() {
            what.rotate_left(usize::from(i > 0));
            let what = what.to_vec();
            facts.push(Fact { kind, who, what });
        }
    }
    facts.truncate(FACTS);
    let mut said: Vec<String> = facts.iter().map(|fact| fact.says(0)).collect();
    dice.shuffle(&mut said);
    for _ in 0..TWICE {
        let again = said[dice.below(FACTS)].clone();
        said.push(again);
    }
    for fact in &facts[..TAKEN_BACK] {
        // Told wrong before it is told right.
        said.insert(0, fact.says(9));
    }
    let mut talk = TALK;
    dice.shuffle(&mut talk);
    for sentence in talk {
        if count(&said.join(" ")) >= LONG {
            break;
        }
        let at = dice.below(said.len() + 1);
        said.insert(at, sentence.to_owned());
    }
    (said.join(" "), facts)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, model, folder, rest @ ..] = &args[..] else {
        return Err("usage: condense facts|kept|gaps MODEL.gguf ENCODER-FOLDER [CASES]".into());
    };
    let cases: usize = rest.first().map_or(Ok(10), |n| n.parse())?;
    let model = haversack_eval::load(Path::new(model))?;
    let encoder = Encoder::open(Path::new(folder), &EncoderOptions::default())?;
    match &what[..] {
        "facts" => facts(&model, &encoder, cases, true),
        "kept" => facts(&model, &encoder, cases, false),
        "gaps" => gaps(&model, Arc::new(encoder), cases),
        _ => Err("accepted: facts, kept or gaps".into()),
    }
}

fn facts(
    model: &Arc<Model>,
    encoder: &dyn Embed,
    cases: usize,
    is_asked: bool,
) -> Result<(), Failure> {
    let layout = Layout::new(model.clone());
    let count = |text: &str| layout.opening(text, 0).map_or(usize::MAX, |ids| ids.len());
    let options = RuntimeOptions {
        retention: Retention::full(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    println!("case,stream,tokens,sentences,facts_kept,facts,right,still_right,mean_logprob");
    let mut totals = [[0usize; 3]; 3];
    for number in 0..cases {
        let (text, facts) = case(number, &count);
        let pieces = [Piece {
            text: text.clone(),
            verbatim: 0,
        }];
        let asked = Asked {
            pieces: &pieces,
            tokens_max: SHORT,
            count: &|_, text| count(text),
        };
        let judged = condense(&asked, Some(encoder))?;
        let words = condense(&asked, None)?;
        let streams = [
            ("whole", &text, judged.sentences),
            ("condensed", &judged.pieces[0], judged.kept),
            ("without encoder", &words.pieces[0], words.kept),
        ];
        let mut whole = Vec::new();
        for (i, (name, text, sentences)) in streams.into_iter().enumerate() {
            let said = |fact: &&Fact| text.contains(&fact.says(0));
            let kept = facts.iter().filter(said).count();
            let case = asked_case(model, &layout, text, &facts)?;
            let verdicts = match is_asked {
                true => choice::judge(&mut runtime, &case)?,
                false => Vec::new(),
            };
            let right = verdicts.iter().filter(|v| v.right).count();
            if i == 0 {
                whole = verdicts.iter().map(|v| v.right).collect();
            }
            let still = verdicts
                .iter()
                .zip(&whole)
                .filter(|(v, w)| v.right && **w)
                .count();
            let mean = verdicts.iter().map(|v| v.logprob).sum::<f64>() / verdicts.len() as f64;
            let (tokens, all) = (count(text), facts.len());
            println!("{number},{name},{tokens},{sentences},{kept},{all},{right},{still},{mean:.3}");
            for (total, n) in totals[i].iter_mut().zip([kept, right, still]) {
                *total += n;
            }
        }
    }
    let all = cases * FACTS;
    for (name, [kept, right, still]) in ["whole", "condensed", "without encoder"].iter().zip(totals)
    {
        let before = totals[0][1];
        println!(
            "{name}: of {all} facts {kept} are there, {right} answered; of the {before} answered before {still} still"
        );
    }
    Ok(())
}

/// Ten answers for each fact, the right one first.
fn asked_case(model: &Model, layout: &Layout, text: &str, facts: &[Fact]) -> Result<Case, Failure> {
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let encode = |text: &str| model.tokenizer().encode(text, plain);
    let mut questions = Vec::new();
    for fact in facts {
        let mut ask = layout.question(&fact.kind.asks.replace("WHO", fact.who))?;
        ask.extend(encode(&fact.begins())?);
        let answer = |what: &&str| encode(&format!(" {what}"));
        let answers = fact.what[..10].iter().map(answer);
        let answers = answers.collect::<Result<_, _>>()?;
        questions.push(Question { ask, answers });
    }
    Ok(Case {
        prompt: layout.opening(text, 0)?,
        questions,
    })
}

fn gaps(model: &Arc<Model>, encoder: Arc<dyn Embed>, cases: usize) -> Result<(), Failure> {
    let layout = Layout::new(model.clone());
    let count = |text: &str| layout.opening(text, 0).map_or(usize::MAX, |ids| ids.len());
    println!(
        "beside,case,answer,stage,tokens,median_ms,p95_ms,longest_ms,ratio,persistent,shadow_bytes,budget_left"
    );
    for beside in [0, 1, 2, 4, 8] {
        for number in 0..cases {
            let options = RuntimeOptions {
                retention: Retention::managed(),
                budget_bytes: Some(64 << 20),
                ..RuntimeOptions::default()
            };
            let mut runtime = Runtime::new(model.clone(), &options)?;
            let options = SessionOptions {
                condense_beside: beside,
                ..SessionOptions::default()
            };
            let mut sessions = Sessions::new(&runtime, options)?.with_encoder(encoder.clone());
            let (text, _) = case(number, &count);
            // As much of it as the cap takes, and then facts.
            let cut = (0..text.len()).rev().find(|&i| {
                text.is_char_boundary(i) && text[..i].ends_with('.') && count(&text[..i]) < 480
            });
            let (opening, rest) = text.split_at(cut.unwrap_or(0));
            let id = sessions.create(&mut runtime, "gaps", opening, 0)?;
            let mut answer = 0;
            let mut say = |sessions: &mut Sessions, runtime: &mut Runtime| -> Result<(), Failure> {
                let mut sampler = Sampler::new(SampleOptions {
                    temperature: 0.0,
                    ..SampleOptions::default()
                })?;
                let options = GenerateOptions {
                    tokens_max: Some(96),
                    ignore_end: true,
                    ..GenerateOptions::default()
                };
                let before = sessions.stats(runtime, id)?.persistent;
                let mut times = Vec::new();
                sessions.say(
                    runtime,
                    id,
                    "Tell me a long story.",
                    0,
                    &mut sampler,
                    &options,
                    &mut |event| {
                        if matches!(event, Event::Token { .. }) {
                            times.push(Instant::now());
                        }
                        ControlFlow::Continue(())
                    },
                )?;
                let mut gaps: Vec<f64> = times
                    .windows(2)
                    .map(|t| (t[1] - t[0]).as_secs_f64() * 1e3)
                    .collect();
                // What is told behind the last token is no token.
                gaps.truncate(94);
                gaps.sort_by(f64::total_cmp);
                let (median, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
                let p95 = gaps[gaps.len() * 95 / 100];
                let stats = sessions.stats(runtime, id)?;
                let (ledger, stage) = (
                    runtime.ledger(),
                    if before > 512 { "over" } else { "within" },
                );
                println!(
                    "{beside},{number},{answer},{stage},{},{median:.2},{p95:.2},{longest:.2},{:.2},{},{},{}",
                    gaps.len(),
                    longest / median,
                    stats.persistent,
                    ledger.kv_live,
                    (64 << 20) - ledger.total() as i64,
                );
                answer += 1;
                Ok(())
            };
            say(&mut sessions, &mut runtime)?;
            for fact in rest
                .split_inclusive(". ")
                .map(str::trim)
                .filter(|f| !TALK.contains(f))
            {
                if sessions.stats(&runtime, id)?.persistent > 512 {
                    break;
                }
                sessions.add_fact(&mut runtime, id, fact, 0)?;
            }
            // Judging, while an answer goes on; then reading, while others do.
            let mut swapped = None;
            for _ in 0..12 {
                say(&mut sessions, &mut runtime)?;
                if beside == 0 {
                    // The owner reads between turns instead.
                    while let Progress::Reading { .. } = sessions.work(&mut runtime, id, 32)? {}
                }
                if sessions.stats(&runtime, id)?.persistent <= 512 {
                    swapped = sessions.stats(&runtime, id)?.condensed;
                    break;
                }
            }
            println!(
                "# {}",
                swapped.as_deref().unwrap_or("not condensed in 12 answers")
            );
            say(&mut sessions, &mut runtime)?;
            sessions.suspend(&mut runtime, id)?;
        }
    }
    Ok(())
}
