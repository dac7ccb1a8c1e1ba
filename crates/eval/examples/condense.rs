//! What condensing keeps, and what it costs an answer that goes on meanwhile:
//! `cargo run --release -p haversack-eval --example condense -- facts|kept|gaps MODEL.gguf ENCODER-FOLDER [CASES]`
//!
//! `facts`: facts among small talk, some told twice, some taken back, become 300 tokens; each fact is asked for by the
//! log-probability of the right answer among ten. `kept`: the same, and nothing is asked. `gaps`: the time between tokens before, while and after a
//! stream is condensed, and which tokens of an answer take longest.

use haversack_conversations::session::condense::{CondensePiece, CondenseRequest, condense};
use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::{Embed, RebuildProgress, SessionOptions, Sessions};
use haversack_engine::encoder::{Encoder, EncoderOptions};
use haversack_engine::runtime::{GenerateEvent, GenerateOptions};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{Model, Retention, Runtime, RuntimeOptions};
use haversack_eval::choice::{self, Case, Question};
use haversack_eval::dice::Dice;
use haversack_eval::stats::Spread;
use haversack_text::tokenizer::EncodeOptions;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

const TALK: [&str; 48] = [
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
    "SequenceOwner would have thought?",
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
    "I never know what to cook on a Monday.",
    "It looks as if it might rain later, or perhaps not.",
    "My neighbours were rather loud again last night.",
    "One gets used to everything in the end.",
    "I always say that a little patience goes a long way.",
    "Remind me to tell you about the market some other time.",
    "The stairs seem to get steeper every year.",
    "Good heavens, is it that late already?",
];

/// Sentences that say facts, and what is true at their end.
fn case(number: usize) -> (Vec<String>, Vec<Fact>) {
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
    (said, facts)
}

/// The same sentences, in their order, among small talk; which, and where, is `seed`'s.
fn among_talk(said: &[String], seed: u64, count: &dyn Fn(&str) -> usize) -> String {
    let mut said = said.to_vec();
    let mut dice = Dice::new(seed, &[TALK.len() as u64]);
    let mut talk = TALK;
    dice.shuffle(&mut talk);
    for sentence in talk {
        if count(&said.join(" ")) >= LONG {
            break;
        }
        let at = dice.below(said.len() + 1);
        said.insert(at, sentence.to_owned());
    }
    said.join(" ")
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
    let layout = ChatLayout::new(model.clone());
    let count = |text: &str| layout.opening(text, 0).map_or(usize::MAX, |ids| ids.len());
    let options = RuntimeOptions {
        retention: Retention::full(),
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    println!("case,stream,tokens,sentences,facts_kept,facts,right,still_right,mean_logprob");
    const STREAMS: [&str; 4] = ["whole", "other small talk", "condensed", "without encoder"];
    let mut totals = [[0usize; 3]; STREAMS.len()];
    for number in 0..cases {
        let (said, facts) = case(number);
        let [text, other] = [0, 1].map(|seed| among_talk(&said, seed, &count));
        let pieces = [CondensePiece {
            text: text.clone(),
            verbatim: 0,
        }];
        let asked = CondenseRequest {
            pieces: &pieces,
            tokens_max: SHORT,
            count: &|_, text| count(text),
        };
        let judged = condense(&asked, Some(encoder))?;
        let words = condense(&asked, None)?;
        // How many are answered whatever is left out, with the same facts among other words, is what to compare with.
        let streams = [
            (&text, judged.summary.sentences),
            (&other, judged.summary.sentences),
            (&judged.pieces[0], judged.summary.kept),
            (&words.pieces[0], words.summary.kept),
        ];
        let mut whole = Vec::new();
        for (i, (text, sentences)) in streams.into_iter().enumerate() {
            let name = STREAMS[i];
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
    for (name, [kept, right, still]) in STREAMS.iter().zip(totals) {
        let before = totals[0][1];
        println!(
            "{name}: of {all} facts {kept} are there, {right} answered; of the {before} answered before {still} still"
        );
    }
    Ok(())
}

/// Ten answers for each fact, the right one first.
fn asked_case(
    model: &Model,
    layout: &ChatLayout,
    text: &str,
    facts: &[Fact],
) -> Result<Case, Failure> {
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

/// What goes on while an answer is given.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Nothing,
    Judging,
    Reading,
}

const STAGES: [(Stage, &str); 3] = [
    (Stage::Nothing, "nothing"),
    (Stage::Judging, "judging"),
    (Stage::Reading, "reading"),
];

/// Gaps between the tokens of an answer, in milliseconds.
struct Answer {
    stage: Stage,
    gaps: Vec<f64>,
}

/// A conversation whose stream was condensed.
struct Told {
    answers: Vec<Answer>,
    /// After so many of them.
    swapped: Option<usize>,
    /// Bytes of the budget, at least.
    left: usize,
}

/// Every conversation is held so often. It is the same each time, token for token, so the least of what a gap took is
/// what its work takes: what the machine does besides comes at other tokens each time.
const TIMES: usize = 7;

fn gaps(model: &Arc<Model>, encoder: Arc<dyn Embed>, cases: usize) -> Result<(), Failure> {
    println!(
        "threads,while,gaps,median_ms,p95_ms,longest_ms,longest/median,least_median_ms,least_p95_ms,least_longest_ms,least_longest/median"
    );
    for threads in [2, 1] {
        let mut all: [Vec<f64>; 3] = Default::default();
        let mut least = all.clone();
        let mut places: Vec<(f64, usize)> = Vec::new();
        let (mut answers, mut left) = (Vec::new(), usize::MAX);
        for number in 0..cases {
            let mut told = Vec::new();
            for _ in 0..TIMES {
                told.push(talk(model, &encoder, threads, number)?);
            }
            for told in &told {
                for answer in &told.answers {
                    all[answer.stage as usize].extend(&answer.gaps);
                }
                let after = told.swapped.map_or("-".to_owned(), |n| n.to_string());
                answers.push(after);
                left = left.min(told.left);
            }
            for (i, first) in told[0].answers.iter().enumerate() {
                let same = |t: &&Told| t.answers.get(i).is_some_and(|a| a.stage == first.stage);
                let times: Vec<&Answer> = told.iter().filter(same).map(|t| &t.answers[i]).collect();
                let of = |gap: usize| times.iter().map(|a| a.gaps[gap]).fold(f64::MAX, f64::min);
                let gaps = (0..first.gaps.len()).map(of);
                places.extend(gaps.clone().zip(0..));
                least[first.stage as usize].extend(gaps);
            }
        }
        for (((_, name), all), least) in STAGES.iter().zip(all).zip(least) {
            let (Some(all), Some(least)) = (Spread::of(all), Spread::of(least)) else {
                continue;
            };
            print!("{threads},{name},{}", all.count());
            for of in [all, least] {
                let (median, longest) = (of.median(), of.longest());
                let p95 = of.percentile(95);
                print!(",{median:.2},{p95:.2},{longest:.2},{:.2}", longest / median);
            }
            println!();
        }
        println!(
            "# swapped after answers: {}; {left} bytes left at least",
            answers.join(" ")
        );
        places.sort_by(|a, b| b.0.total_cmp(&a.0));
        let places = places.iter().take(12);
        let places: Vec<String> = places.map(|(ms, at)| format!("{at} {ms:.1}")).collect();
        println!("# longest, by place in the answer: {}", places.join(", "));
    }
    Ok(())
}

/// One conversation whose stream is condensed.
fn talk(
    model: &Arc<Model>,
    encoder: &Arc<dyn Embed>,
    threads: usize,
    number: usize,
) -> Result<Told, Failure> {
    const BUDGET_BYTES: usize = 64 << 20;
    let layout = ChatLayout::new(model.clone());
    let count = |text: &str| layout.opening(text, 0).map_or(usize::MAX, |ids| ids.len());
    let options = RuntimeOptions {
        retention: Retention::managed(),
        budget_bytes: Some(BUDGET_BYTES),
        cache_dir: Some(haversack_eval::folder()),
        threads,
        ..RuntimeOptions::default()
    };
    let mut runtime = Runtime::new(model.clone(), &options)?;
    let mut sessions =
        Sessions::new(&runtime, SessionOptions::default())?.with_encoder(encoder.clone());
    let text = among_talk(&case(number).0, 0, &count);
    // As much of it as the cap takes, and then facts.
    let cut = (0..text.len())
        .rev()
        .find(|&i| text.is_char_boundary(i) && text[..i].ends_with('.') && count(&text[..i]) < 480);
    let (opening, rest) = text.split_at(cut.unwrap_or(0));
    let id = sessions.create(&mut runtime, "gaps", opening, 0)?;
    let (mut answers, mut left) = (Vec::new(), usize::MAX);
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
        // What goes on now goes on for most of the answer.
        let stage = match sessions.work(runtime, id, 1)? {
            RebuildProgress::Judging => Stage::Judging,
            RebuildProgress::Reading { .. } => Stage::Reading,
            _ => Stage::Nothing,
        };
        let is_judging = matches!(stage, Stage::Judging);
        let mut moments = Vec::with_capacity(96);
        let tell = &mut |event: GenerateEvent<'_>| {
            if matches!(event, GenerateEvent::Token { .. }) {
                moments.push(Instant::now());
            }
            ControlFlow::Continue(())
        };
        let question = "Tell me a long story.";
        sessions.say(runtime, id, question, 0, &mut sampler, &options, tell)?;
        // What is told behind the last token is no token.
        moments.truncate(95);
        let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
        let gaps = gaps.map(|gap| gap.as_secs_f64() * 1e3).collect();
        answers.push(Answer { stage, gaps });
        // How long it is judged depends on the machine: reading begins with the next answer, every time.
        while is_judging && matches!(sessions.work(runtime, id, 1)?, RebuildProgress::Judging) {
            std::thread::sleep(Duration::from_millis(1));
        }
        left = left.min(BUDGET_BYTES.saturating_sub(runtime.ledger().peak));
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
    for answer in 1..=12 {
        say(&mut sessions, &mut runtime)?;
        if sessions.stats(&runtime, id)?.persistent <= 512 {
            swapped = Some(answer);
            break;
        }
    }
    say(&mut sessions, &mut runtime)?;
    sessions.suspend(&mut runtime, id)?;
    Ok(Told {
        answers,
        swapped,
        left,
    })
}
