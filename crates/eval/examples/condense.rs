//! What condensing keeps, and what it costs an answer that goes on meanwhile:
//! `cargo run --release -p haversack-eval --example condense -- facts|gaps MODEL.gguf ENCODER-FOLDER [CASES]`
//!
//! `facts`: facts among small talk, some told twice, some taken back, become 300 tokens; each fact is asked for by the
//! log-probability of the right name among ten that the text holds. `gaps`: the time between tokens before, while and after a
//! stream is condensed.

use haversack::encoder::{Encoder, EncoderOptions};
use haversack::run::{Event, GenerateOptions};
use haversack::sample::{SampleOptions, Sampler};
use haversack::session::condense::{Asked, Piece, condense};
use haversack::session::layout::Layout;
use haversack::session::{Embed, Progress, SessionOptions, Sessions};
use haversack::text::tokenizer::EncodeOptions;
use haversack::{LoadOptions, Model, Repack, Retention, Runtime, RuntimeOptions};
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

const WHO: [&str; 44] = [
    "dentist",
    "plumber",
    "baker",
    "butcher",
    "doctor",
    "lawyer",
    "gardener",
    "teacher",
    "driver",
    "pilot",
    "nurse",
    "painter",
    "tailor",
    "mayor",
    "judge",
    "cook",
    "waiter",
    "barber",
    "coach",
    "priest",
    "banker",
    "builder",
    "carpenter",
    "cleaner",
    "clerk",
    "farmer",
    "florist",
    "guard",
    "janitor",
    "landlord",
    "librarian",
    "mechanic",
    "neighbor",
    "optician",
    "porter",
    "postman",
    "roofer",
    "sailor",
    "singer",
    "surgeon",
    "tutor",
    "vet",
    "welder",
    "writer",
];
const NAMES: [&str; 56] = [
    "Weber", "Dixon", "Moss", "Hale", "Kent", "Ford", "Lane", "Webb", "Cole", "Grant", "Hayes",
    "Price", "Shaw", "Stone", "Wood", "Young", "King", "Hill", "Cook", "Bell", "Ward", "Gray",
    "Reed", "Cox", "Long", "Ross", "West", "Hunt", "Black", "Rice", "Burns", "Mills", "Nichols",
    "Knight", "Rose", "Hudson", "Carroll", "Duncan", "Snyder", "Hart", "Andrews", "Ruiz", "Fox",
    "Riley", "Greene", "Carter", "Parker", "Evans", "Morris", "Murphy", "Bailey", "Cooper",
    "Howard", "Brooks", "Kelly", "Sanders",
];
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

/// A text, and what is true at its end: (who, name).
fn case(
    number: usize,
    count: &dyn Fn(&str) -> usize,
) -> (String, Vec<(&'static str, &'static str)>) {
    let mut dice = Dice::new(number as u64, &[]);
    let (mut who, mut names) = (WHO, NAMES);
    dice.shuffle(&mut who);
    dice.shuffle(&mut names);
    let facts: Vec<_> = who.into_iter().zip(names).take(FACTS).collect();
    let say = |(who, name): (&str, &str)| format!("The {who} is called {name}.");
    let mut said: Vec<String> = facts.iter().map(|&fact| say(fact)).collect();
    for i in 0..TWICE {
        said.push(say(facts[i]));
    }
    for i in TWICE..TWICE + TAKEN_BACK {
        // Told wrong before it is told right.
        said.insert(0, say((facts[i].0, names[FACTS + i])));
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
        return Err("usage: condense facts|gaps MODEL.gguf ENCODER-FOLDER [CASES]".into());
    };
    let cases: usize = rest.first().map_or(Ok(10), |n| n.parse())?;
    let load = LoadOptions {
        repack: Repack::Into(std::env::temp_dir().join("haversack-needles")),
        threads: 2,
        ..LoadOptions::default()
    };
    let model = Model::load(Path::new(model), &load, &mut |_, _| ())?;
    let encoder = Encoder::open(Path::new(folder), &EncoderOptions::default())?;
    match &what[..] {
        "facts" => facts(&model, &encoder, cases),
        "gaps" => gaps(&model, Arc::new(encoder), cases),
        _ => Err("accepted: facts or gaps".into()),
    }
}

fn facts(model: &Arc<Model>, encoder: &dyn Embed, cases: usize) -> Result<(), Failure> {
    let layout = Layout::new(model, 0);
    let count = |text: &str| layout.opening(text).map_or(usize::MAX, |ids| ids.len());
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
            let said =
                |&&(who, name): &&(&str, &str)| text.contains(&format!("{who} is called {name}."));
            let kept = facts.iter().filter(said).count();
            let case = asked_case(model, &layout, text, &facts)?;
            let verdicts = choice::judge(&mut runtime, &case)?;
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

/// Ten names of the text for each fact, the right one first.
fn asked_case(
    model: &Model,
    layout: &Layout<'_>,
    text: &str,
    facts: &[(&str, &str)],
) -> Result<Case, Failure> {
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let encode = |text: &str| model.tokenizer().encode(text, plain);
    let mut questions = Vec::new();
    for (i, (who, _)) in facts.iter().enumerate() {
        let mut ask = layout.question(&format!("What is the {who} called?"))?;
        ask.extend(encode(&format!("The {who} is called"))?);
        let name = |k: usize| encode(&format!(" {}", facts[(i + k * 4) % facts.len()].1));
        let answers = (0..10).map(name).collect::<Result<_, _>>()?;
        questions.push(Question { ask, answers });
    }
    Ok(Case {
        prompt: layout.opening(text)?,
        questions,
    })
}

fn gaps(model: &Arc<Model>, encoder: Arc<dyn Embed>, cases: usize) -> Result<(), Failure> {
    let layout = Layout::new(model, 0);
    let count = |text: &str| layout.opening(text).map_or(usize::MAX, |ids| ids.len());
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
                .filter(|f| f.starts_with("The "))
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
