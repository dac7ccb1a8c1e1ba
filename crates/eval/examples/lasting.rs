//! Conversations that last, measured: `cargo run --release -p haversack-eval --example lasting -- WHAT MODEL [ENCODER_DIR] [COUNT] [MIB]`
//!
//! Where only the number of turns counts, MODEL `random` is a tiny one of random weights, and ENCODER_DIR `random` embeds
//! without meaning. MIB is the budget.
//!
//! | what | |
//! |---|---|
//! | `turns` | so many turns (10,000) in one session in 32 MiB: private memory, file; after each turn whether every turn is whole |
//! | `gaps` | the time between the tokens of so many answers (200) in a full session, with turns that leave and come back, and of tokens decoded behind the same rows with nothing else to do |
//! | `sessions` | so many sessions (1,000) made, resumed and deleted: blocks, handles, files, private memory |
//! | `ranks` | so many turns (10,000) told to one session: how long ranking them for a question takes, and the bytes kept for it |
//! | `switch` | going on with a session of 600 tokens, from memory and from disk, and opening on a known text, against reading it all again |

use haversack_conversations::session::layout::ChatLayout;
use haversack_conversations::session::turns::{Turn, TurnPlace};
use haversack_conversations::session::{
    Embed, QuestionEmbedding, SessionId, SessionOptions, SessionSettings, Sessions,
};
use haversack_engine::encoder::{Embedding, Encoder, EncoderError, EncoderOptions};
use haversack_engine::runtime::{GenerateEvent, GenerateOptions};
use haversack_engine::sample::{SampleOptions, Sampler};
use haversack_engine::{Codec, KvForm, KvOptions, Model, Retention, Runtime, RuntimeOptions};
use haversack_eval::dice::Dice;
use haversack_eval::long_talk::{LongTalk, TURNS, TalkSet, long_talk};
use haversack_eval::stats::Spread;
use haversack_eval::talk::{overlap, seen, small_talk};
use haversack_memory::usage::ProcessUsage;
use haversack_testing::models::Spec;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

const BUDGET_BYTES: usize = 32 << 20;
/// Four sessions at once and what they are compared with.
const SWITCH_BYTES: usize = 64 << 20;
const QUOTA_BYTES: u64 = 64 << 20;
/// Of an answer whose gaps are measured.
const GAPS_TOKENS: usize = 32;
const PERSISTENT: &str =
    "You are a helpful assistant with a good memory. Answer in one short sentence.";

fn main() -> Result<(), Failure> {
    let usage = "usage: lasting turns|gaps|sessions|ranks|switch MODEL [ENCODER_DIR] [COUNT] [MIB]";
    let mut args = std::env::args().skip(1);
    let (what, model) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    // `-` is none.
    let encoder = args.next().filter(|folder| folder != "-");
    let count = args.next().map(|n| n.parse::<usize>()).transpose()?;
    let mib = args.next().map(|n| n.parse::<usize>()).transpose()?;
    let folder = std::env::temp_dir().join(format!("haversack-lasting-{}", std::process::id()));
    let model = match model.as_str() {
        "random" => random_model(&folder)?,
        model => haversack_eval::load(Path::new(model))?,
    };
    let budget_bytes = match what.as_str() {
        "switch" => SWITCH_BYTES,
        _ => BUDGET_BYTES,
    };
    let budget_bytes = mib.map_or(budget_bytes, |mib| mib << 20);
    let encoder = encoder.as_deref().map(Path::new);
    let mut made = Made::new(&model, &folder, encoder, budget_bytes)?;
    let done = match what.as_str() {
        "turns" => turns(&mut made, count.unwrap_or(10_000)),
        "gaps" => gaps(&mut made, count.unwrap_or(200)),
        "sessions" => sessions(&mut made, count.unwrap_or(1000)),
        "ranks" => ranks(&mut made, count.unwrap_or(10_000)),
        "switch" => switch(&mut made, count.unwrap_or(50)),
        _ => Err(usage.into()),
    };
    let _ = std::fs::remove_dir_all(&folder);
    done
}

/// Small enough to read ten thousand turns in minutes. A token is a byte or two.
fn random_model(folder: &Path) -> Result<Arc<Model>, Failure> {
    let spec = Spec {
        layers: 1,
        dim: 64,
        ffn: 64,
        heads: 2,
        kv_heads: 1,
        context: 4096,
        ..Spec::named("llama").ok_or("no such model")?
    };
    std::fs::create_dir_all(folder)?;
    let path = folder.join("random.gguf");
    spec.write_file(&path)?;
    Ok(haversack_eval::load(&path)?)
}

/// Directions that follow from the bytes of a text: as long to compare as others.
struct RandomEncoder;

impl Embed for RandomEncoder {
    fn embed(&self, text: &str) -> Result<Embedding, EncoderError> {
        let seed = text.bytes().fold(27, |seed: u64, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut dice = Dice::new(seed, &[]);
        let direction = std::array::from_fn(|_| dice.below(2001) as f32 - 1000.0);
        Embedding::of(direction).ok_or(EncoderError::NoDirection)
    }

    fn is_quick(&self) -> bool {
        true
    }
}

struct Made {
    runtime: Runtime,
    sessions: Sessions,
    encoder: Option<Arc<dyn Embed>>,
    layout: ChatLayout,
    folder: PathBuf,
    filler: Vec<(String, String)>,
    dice: Dice,
    /// Tokens so far, because only they were left.
    read_again: u64,
}

impl Made {
    fn new(
        model: &Arc<Model>,
        folder: &Path,
        encoder: Option<&Path>,
        budget_bytes: usize,
    ) -> Result<Made, Failure> {
        let options = RuntimeOptions {
            retention: Retention::managed(),
            kv: KvOptions::new(KvForm::both(Codec::Int4.form())),
            budget_bytes: Some(budget_bytes),
            cache_dir: Some(haversack_eval::folder()),
            ..RuntimeOptions::default()
        };
        let runtime = Runtime::new(model.clone(), &options)?;
        let options = SessionOptions {
            settings: SessionSettings {
                quota_bytes: Some(QUOTA_BYTES),
                ..SessionSettings::default()
            },
            dir: Some(folder.join("sessions")),
            prefix_dir: Some(folder.join("prefixes")),
            ..SessionOptions::default()
        };
        let mut sessions = Sessions::new(&runtime, options)?;
        let open = |folder: &Path| -> Result<Arc<dyn Embed>, EncoderError> {
            match folder.to_str() {
                Some("random") => Ok(Arc::new(RandomEncoder)),
                _ => Ok(Arc::new(Encoder::open(folder, &EncoderOptions::default())?)),
            }
        };
        let encoder = encoder.map(open).transpose()?;
        if let Some(encoder) = &encoder {
            sessions = sessions.with_encoder(encoder.clone());
        }
        Ok(Made {
            runtime,
            sessions,
            encoder,
            layout: ChatLayout::new(model.clone()),
            folder: folder.to_owned(),
            filler: small_talk(),
            dice: Dice::new(1, &[0x1a57]),
            read_again: 0,
        })
    }

    fn open(&mut self, name: &str, persistent: &str) -> Result<SessionId, Failure> {
        let runtime = &mut self.runtime;
        Ok(self.sessions.create(runtime, name, persistent, 0)?)
    }

    fn question(&mut self) -> String {
        let at = self.dice.below(self.filler.len());
        self.filler[at].0.clone()
    }

    /// One turn of at most so many tokens of answer; returns when each came.
    fn say(&mut self, id: SessionId, tokens: usize, now: u64) -> Result<Vec<Instant>, Failure> {
        let text = self.question();
        let mut sampler = Sampler::new(SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        })?;
        let options = GenerateOptions {
            tokens_max: Some(tokens),
            ..GenerateOptions::default()
        };
        let mut times = Vec::new();
        let tell = &mut |event: GenerateEvent<'_>| {
            if matches!(event, GenerateEvent::Token { .. }) {
                times.push(Instant::now());
            }
            ControlFlow::Continue(())
        };
        let runtime = &mut self.runtime;
        let answer = self
            .sessions
            .say(runtime, id, &text, now, &mut sampler, &options, tell)?;
        self.read_again += answer.context.recomputed;
        match answer.context.unsaved {
            Some(why) => Err(why.to_string().into()),
            None => Ok(times),
        }
    }

    /// Milliseconds until a question of a word is read, and those of reading the same tokens once more.
    fn until_read(&mut self, id: SessionId) -> Result<(f64, f64), Failure> {
        let question = self.layout.question("And?")?;
        let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
        let mut times = (0.0, 0.0);
        let start = Instant::now();
        let look = &mut |runtime: &mut Runtime, sequence| {
            times.0 = ms(start);
            let fork = runtime.fork(sequence)?;
            let again = Instant::now();
            runtime.feed(fork, &question, &mut |_| ControlFlow::Continue(()))?;
            times.1 = ms(again);
            runtime.close(fork)
        };
        self.sessions.peek(&mut self.runtime, id, "And?", look)?;
        Ok(times)
    }

    /// Tells a turn without generating it.
    fn tell(&mut self, id: SessionId) -> Result<(), Failure> {
        let at = self.dice.below(self.filler.len());
        let (question, answer) = &self.filler[at];
        let runtime = &mut self.runtime;
        self.sessions.tell(runtime, id, question, answer, 0)?;
        Ok(())
    }
}

/// Many turns in one session.
fn turns(made: &mut Made, count: usize) -> Result<(), Failure> {
    let id = made.open("long", PERSISTENT)?;
    let sequence = made.sessions.sequence(id)?;
    let opening = 0..made.runtime.position(sequence)?;
    let mut private = Vec::new();
    let (mut recalled, mut file_most) = (0u64, 0);
    println!(
        "turn,private_bytes,ledger_bytes,file_bytes,visible,hidden,spilled,ids,forgotten,recalled,read_again"
    );
    for turn in 0..count {
        made.say(id, 8, turn as u64)?;
        check(made, id, &opening)?;
        let stats = made.sessions.stats(&made.runtime, id)?;
        file_most = stats.file_bytes.max(file_most);
        recalled += u64::from(
            made.sessions
                .turns(id)?
                .iter()
                .rev()
                .skip(8)
                .any(|t| t.is_visible),
        );
        let ledger = made.runtime.ledger();
        if ledger.total() > BUDGET_BYTES || ledger.peak > BUDGET_BYTES {
            return Err(format!("turn {turn}: {ledger:?}").into());
        }
        if (turn + 1) % 100 == 0 {
            let bytes = ProcessUsage::now()?.private_bytes;
            private.push((turn as f64 + 1.0, bytes as f64));
            println!(
                "{},{bytes},{},{},{},{},{},{},{},{recalled},{}",
                turn + 1,
                ledger.total(),
                stats.file_bytes,
                stats.visible,
                stats.hidden,
                stats.spilled,
                stats.ids,
                stats.forgotten,
                made.read_again,
            );
        }
    }
    let late: Vec<(f64, f64)> = private.into_iter().filter(|(t, _)| *t > 500.0).collect();
    let per_thousand = slope(&late) * 1000.0 / f64::from(1 << 20);
    println!("private memory after 500 turns: {per_thousand:+.3} MiB per 1,000 turns");
    println!(
        "file at most {file_most} bytes of {QUOTA_BYTES}; an older turn seen in {recalled} turns; every turn whole after each of {count}"
    );
    Ok(())
}

/// Answers of a session that is full, and the same number of tokens behind the same rows.
fn gaps(made: &mut Made, count: usize) -> Result<(), Failure> {
    let id = made.open("long", PERSISTENT)?;
    while made.sessions.stats(&made.runtime, id)?.spilled == 0 {
        made.tell(id)?;
    }
    let between = |times: &[Instant]| {
        let ms = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64() * 1e3;
        times.windows(2).map(ms).collect::<Vec<f64>>()
    };
    let (mut said, mut plain) = (Vec::new(), Vec::new());
    let mut changed = 0;
    for turn in 0..count {
        let before = made.sessions.stats(&made.runtime, id)?;
        let times = made.say(id, GAPS_TOKENS, turn as u64)?;
        said.extend(between(&times));
        let after = made.sessions.stats(&made.runtime, id)?;
        changed += u64::from((before.spilled, before.ids) != (after.spilled, after.ids));
        let sequence = made.sessions.sequence(id)?;
        let fork = made.runtime.fork(sequence)?;
        let mut times = Vec::new();
        for token in 0..GAPS_TOKENS {
            made.runtime.decode(fork, 1000 + token as u32)?;
            times.push(Instant::now());
        }
        made.runtime.close(fork)?;
        plain.extend(between(&times));
    }
    println!("{count} answers, turns left or came back before {changed} of them");
    for (what, gaps) in [("answers", said), ("nothing else", plain)] {
        let gaps = Spread::of(gaps).ok_or("no gaps")?;
        let (mean, p95) = (gaps.mean(), gaps.percentile(95));
        println!(
            "{what}: {} gaps, mean {mean:.2} ms, median {:.2} ms, p95 {p95:.2} ms, {:.2} of the mean; p99 {:.2} ms",
            gaps.count(),
            gaps.median(),
            p95 / mean,
            gaps.percentile(99),
        );
    }
    Ok(())
}

/// Turns of long talks, told to one session, and their questions.
fn ranks(made: &mut Made, count: usize) -> Result<(), Failure> {
    let id = made.open("long", PERSISTENT)?;
    let talks = count.div_ceil(TURNS);
    let talks = (0..talks).map(|number| long_talk(TalkSet::Development, number, TURNS, &[]));
    let talks: Vec<LongTalk> = talks.collect();
    let told = talks.iter().flat_map(|talk| &talk.turns).take(count);
    let print = |made: &Made, told: usize, times: &[f64]| -> Result<(), Failure> {
        let ledger = made.runtime.ledger();
        let stats = made.sessions.stats(&made.runtime, id)?;
        let times = Spread::of(times.to_vec()).ok_or("no questions")?;
        println!(
            "{told},{},{:.2},{:.2},{:.2},{},{},{}",
            times.count(),
            times.median(),
            times.percentile(95),
            times.percentile(100),
            ledger.total(),
            ProcessUsage::now()?.private_bytes,
            stats.file_bytes,
        );
        Ok(())
    };
    println!("turns,questions,median_ms,p95_ms,longest_ms,ledger_bytes,private_bytes,file_bytes");
    for (turn, (said, answered)) in told.enumerate() {
        let runtime = &mut made.runtime;
        made.sessions.tell(runtime, id, said, answered, 0)?;
        if ![count, count / 10].contains(&(turn + 1)) {
            continue;
        }
        let mut times = Vec::new();
        for asked in talks.iter().flat_map(|talk| &talk.asked).take(200) {
            let encoder = made.encoder.as_ref();
            let asked = &asked.question;
            let embedding = encoder.map(|encoder| QuestionEmbedding::new(&**encoder, asked));
            let embedding = embedding.transpose()?;
            let start = Instant::now();
            let runtime = &mut made.runtime;
            let ranked = made
                .sessions
                .rank_turns(runtime, id, asked, embedding.as_ref())?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            if ranked.is_empty() && encoder.is_some() {
                return Err(format!("nothing is found for {asked}").into());
            }
        }
        print(made, turn + 1, &times)?;
    }
    Ok(())
}

/// Every turn is in memory as a whole or not at all, seen as a whole or not at all, and nothing else is seen.
fn check(made: &Made, id: SessionId, opening: &Range<u64>) -> Result<(), Failure> {
    let store = made.runtime.store();
    let sequence = made.sessions.sequence(id)?;
    let turns = made.sessions.turns(id)?;
    let seen = seen(&made.runtime, sequence)?;
    let within = |range: &Range<u64>| overlap(&seen, range);
    let whole = |turn: &&Turn| {
        let rows = within(&turn.span);
        match turn.is_visible {
            true => rows == turn.tokens() && turn.place == TurnPlace::Live,
            false => rows == 0,
        }
    };
    if let Some(split) = turns.iter().find(|turn| !whole(turn)) {
        return Err(format!("{split:?} has {} rows seen", within(&split.span)).into());
    }
    if within(opening) != opening.end {
        return Err(format!("{} of {opening:?} are seen", within(opening)).into());
    }
    let visible = turns.iter().filter(|t| t.is_visible);
    let visible: u64 = visible.map(|t| t.tokens()).sum();
    let all = within(&(0..store.position(sequence)?));
    match all == opening.end + visible {
        true => Ok(()),
        false => Err(format!("{all} rows seen, {visible} of turns").into()),
    }
}

fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len().max(1) as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let (mut top, mut bottom) = (0.0, 0.0);
    for point in points {
        top += (point.0 - x) * (point.1 - y);
        bottom += (point.0 - x) * (point.0 - x);
    }
    top / bottom.max(1.0)
}

/// Many sessions, one after the other.
fn sessions(made: &mut Made, count: usize) -> Result<(), Failure> {
    let handles = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let files =
        |made: &Made| std::fs::read_dir(made.folder.join("sessions")).map_or(0, Iterator::count);
    println!("stage,sessions,private_bytes,kv_live,kv_file,ledger_bytes,handles,files");
    let print = |made: &Made, stage: &str, done: usize| -> Result<(), Failure> {
        let ledger = made.runtime.ledger();
        println!(
            "{stage},{done},{},{},{},{},{},{}",
            ProcessUsage::now()?.private_bytes,
            ledger.kv_live,
            ledger.kv_file,
            ledger.total(),
            handles(),
            files(made)
        );
        Ok(())
    };
    let name = |i: usize| format!("s{i}");
    for i in 0..count {
        let id = made.open(&name(i), PERSISTENT)?;
        made.say(id, 4, 0)?;
        made.sessions.suspend(&mut made.runtime, id)?;
        if i == 0 || (i + 1) % 100 == 0 {
            print(made, "made", i + 1)?;
        }
    }
    for i in 0..count {
        let id = made.sessions.resume(&mut made.runtime, &name(i))?;
        made.say(id, 4, 1)?;
        made.sessions.suspend(&mut made.runtime, id)?;
        if i == 0 || (i + 1) % 100 == 0 {
            print(made, "resumed", i + 1)?;
        }
    }
    for i in 0..count {
        made.sessions.delete(&name(i))?;
    }
    print(made, "deleted", count)
}

/// Going on with a conversation.
fn switch(made: &mut Made, count: usize) -> Result<(), Failure> {
    const TOKENS: u64 = 600;
    let names = ["one", "two"];
    let mut ids = Vec::new();
    for name in names {
        let id = made.open(name, PERSISTENT)?;
        while made.sessions.stats(&made.runtime, id)?.position < TOKENS {
            made.tell(id)?;
        }
        ids.push(id);
    }
    // Of a third one most turns are on disk.
    let old = made.open("old", PERSISTENT)?;
    while made.sessions.stats(&made.runtime, old)?.spilled < 4 * TOKENS {
        made.tell(old)?;
    }
    // Without an encoder and without files.
    let options = SessionOptions {
        dir: None,
        ..made.sessions.options().clone()
    };
    let mut bare = Sessions::new(&made.runtime, options)?;
    let same = bare.create(&mut made.runtime, "same", PERSISTENT, 0)?;
    while bare.stats(&made.runtime, same)?.position < TOKENS {
        let (question, answer) = &made.filler[bare.turns(same)?.len()];
        bare.tell(&mut made.runtime, same, question, answer, 0)?;
    }
    // The same tokens, to be read again: how long they take does not depend on what they are.
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|i| 100 + i).collect();
    let long = "Nobody is told what the others said. ".repeat(50);
    let (mut again, mut memory, mut disk) = (Vec::new(), Vec::new(), Vec::new());
    let (mut without, mut recalled) = (Vec::new(), Vec::new());
    let (mut known, mut fresh) = (Vec::new(), Vec::new());
    let (mut embedding, mut delay) = (Vec::new(), Vec::new());
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    for round in 0..count {
        let start = Instant::now();
        let plain = made.runtime.open()?;
        let mut go_on = |_| ControlFlow::Continue(());
        made.runtime.feed(plain, &tokens, &mut go_on)?;
        again.push(ms(start));
        made.runtime.close(plain)?;

        let id = ids[round % 2];
        let (whole, question) = made.until_read(id)?;
        std::mem::swap(&mut made.sessions, &mut bare);
        let (plain, read) = made.until_read(same)?;
        std::mem::swap(&mut made.sessions, &mut bare);
        memory.push(plain - read);
        if let Some(encoder) = &made.encoder {
            let start = Instant::now();
            encoder.embed("And?")?;
            embedding.push(ms(start));
            delay.push((whole - question) - (plain - read));
        }
        without.push(made.until_read(old)?.0);
        let turns = made.sessions.turns(old)?;
        let mut spilled = turns.iter().filter(|t| t.place == TurnPlace::Spilled);
        let one = spilled.nth(round).ok_or("too few turns on disk")?.number;
        made.sessions.recall(old, one)?;
        recalled.push(made.until_read(old)?.0);

        made.sessions.suspend(&mut made.runtime, id)?;
        let start = Instant::now();
        ids[round % 2] = made.sessions.resume(&mut made.runtime, names[round % 2])?;
        disk.push(ms(start));

        let text = format!("{round} {long}");
        for times in [&mut fresh, &mut known] {
            let start = Instant::now();
            let id = made.open("opened", &text)?;
            times.push(ms(start));
            made.sessions.suspend(&mut made.runtime, id)?;
            made.sessions.delete("opened")?;
        }
    }
    // What is hidden and what is dropped, worked out and told to the store; pinning does nothing else.
    let id = bare.create(&mut made.runtime, "masks", PERSISTENT, 0)?;
    let mut masks = Vec::new();
    for i in 0..64 {
        bare.tell(&mut made.runtime, id, &format!("Is it {i}?"), "It is.", 0)?;
    }
    let turns: Vec<u64> = bare.turns(id)?.iter().map(|turn| turn.number).collect();
    for (i, &turn) in turns.iter().cycle().take(1000).enumerate() {
        let start = Instant::now();
        bare.pin(
            &mut made.runtime,
            id,
            turn,
            (i / turns.len()).is_multiple_of(2),
        )?;
        masks.push(ms(start));
    }
    let middle = |times: Vec<f64>| {
        let spread = Spread::of(times).ok_or("nothing measured")?;
        Ok::<_, Failure>((spread.median(), spread.percentile(95)))
    };
    let (read, read95) = middle(again)?;
    println!("{TOKENS} tokens read again: median {read:.2} ms, p95 {read95:.2} ms");
    let (median, p95) = middle(disk)?;
    let faster = read / median;
    println!("from disk: median {median:.2} ms, p95 {p95:.2} ms, {faster:.0} times faster");
    let (median, p95) = middle(memory)?;
    println!(
        "from memory, what a question takes beside being read: median {median:.2} ms, p95 {p95:.2} ms"
    );
    if !embedding.is_empty() {
        let ((judging, _), (delay, _)) = (middle(embedding)?, middle(delay)?);
        println!(
            "relevance: reading begins {delay:.2} ms later, with an encoder that takes {judging:.2} ms"
        );
    }
    let ((plain, _), (with, with95)) = (middle(without)?, middle(recalled)?);
    println!(
        "the same in a long session: {plain:.2} ms, with a turn that comes back from disk {with:.2} ms, p95 {with95:.2} ms"
    );
    let (median, p95) = middle(masks)?;
    println!(
        "masks of {} turns: median {median:.3} ms, p95 {p95:.3} ms",
        turns.len()
    );
    let ((read, _), (median, p95)) = (middle(fresh)?, middle(known)?);
    println!(
        "opened on a text nobody knows: {read:.1} ms; on a known one: median {median:.2} ms, p95 {p95:.2} ms, {:.0} times faster",
        read / median
    );
    Ok(())
}
