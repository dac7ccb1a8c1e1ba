//! Killed with SIGKILL, at every step of every file and at random moments.
//!
//! A child (this program again) tells the script from a step on and says "ack" after each. It is killed, or dies inside a
//! call to the disk. The parent resumes what is left: it must be the state after the last acknowledged step or after the
//! one under way, and the rest of the script is answered as it was without a fault.

use crate::common::{SMOLLM2, real_model};
use crate::script::{Op, SCRIPT, SHORT, Telling, Told};
use crate::{Dice, World, asked, quick_dir};
use haversack_testing::{DiskCall, DiskFault, JournalFaults};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MODEL: &str = "TORN_MODEL";
const DIR: &str = "TORN_DIR";
const FROM: &str = "TORN_FROM";
const NTH: &str = "TORN_NTH";
const QUOTA: &str = "TORN_QUOTA";
const CAPACITY: &str = "TORN_CAPACITY";
const IS_SHORT: &str = "TORN_SHORT";

/// Calls that a telling makes, sooner or later.
const KINDS: [DiskCall; 6] = [
    DiskCall::Write,
    DiskCall::SyncData,
    DiskCall::WriteHead,
    DiskCall::SyncHead,
    DiskCall::Rename,
    DiskCall::SyncFolder,
];

/// The child's side. Without its variables it is no test.
#[test]
fn child_tells_the_script() {
    let (Some(model), Some(dir)) = (std::env::var_os(MODEL), std::env::var_os(DIR)) else {
        return;
    };
    let say = |line: String| {
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    let mut world = World::of(Path::new(&model), PathBuf::from(dir));
    world.options.settings.quota_bytes = Some(asked(QUOTA).unwrap() as u64);
    world.options.settings.capacity = Some(asked(CAPACITY).unwrap());
    world.options.journal_io = asked(NTH).map(|n| JournalFaults::at(n, DiskFault::Kill).io());
    let script = match asked(IS_SHORT) {
        Some(_) => SHORT,
        None => SCRIPT,
    };
    let from = asked(FROM).unwrap();
    let mut telling = match from {
        0 => Telling::new(&world),
        _ => {
            let (telling, refused) = Telling::resumed(&world);
            if telling.main.is_none() {
                say(format!("refused {}\n", refused[0]));
                return;
            }
            telling
        }
    };
    say("open\n".to_owned());
    for (i, op) in script.iter().enumerate().skip(from) {
        let told = telling.step(*op);
        say(format!("ack {} {}\n", i + 1, told.state));
    }
}

/// The script told without a fault, and the folder after every step.
struct Measure {
    world: World,
    script: &'static [Op],
    /// (step): what it said; the state before the first is of nothing.
    told: Vec<Told>,
    /// (step): the sessions after it, in words.
    described: Vec<String>,
    nothing: u64,
    folders: PathBuf,
    /// Of one step.
    typical: Duration,
    _folder: tempfile::TempDir,
}

impl Measure {
    fn take(world: World, folder: tempfile::TempDir, script: &'static [Op]) -> Measure {
        let folders = folder.path().join("steps");
        let mut telling = Telling::new(&world);
        let nothing = telling.state();
        let mut told = Vec::new();
        let mut described = Vec::new();
        let begun = Instant::now();
        let mut rewrites = 0;
        let mut recalled = 0;
        let mut bytes = 0;
        let (mut spilled, mut ids) = (0, 0);
        for (i, op) in script.iter().enumerate() {
            let answer = telling.try_step(*op).unwrap();
            recalled += answer.as_ref().map_or(0, |a| a.context.recalled.len());
            told.push(Told {
                tokens: answer.map(|a| a.tokens).unwrap_or_default(),
                state: telling.state(),
            });
            described.push(telling.describe());
            let stats = telling
                .sessions
                .stats(&telling.runtime, telling.main.unwrap());
            let stats = stats.unwrap();
            assert_eq!(stats.unsaved, None);
            rewrites += usize::from(stats.file_bytes < bytes);
            bytes = stats.file_bytes;
            spilled = spilled.max(stats.spilled);
            ids = ids.max(stats.ids);
            copy(world.dir(), &folders.join((i + 1).to_string()));
        }
        let typical = begun.elapsed() / script.len() as u32;
        let id = telling.main.unwrap();
        let stats = telling.sessions.stats(&telling.runtime, id).unwrap();
        println!(
            "{} steps of {typical:?}, {rewrites} rewrites, {recalled} recalled, {spilled} spilled, {ids} as ids, {stats:?}",
            script.len()
        );
        assert!(rewrites > 0 && spilled > 0, "too tame");
        assert!(recalled > 0 || script.len() == SHORT.len(), "too tame");
        for (i, pair) in told.windows(2).enumerate() {
            assert_ne!(pair[0].state, pair[1].state, "step {i} changes nothing");
        }
        Measure {
            world,
            script,
            told,
            described,
            nothing,
            folders,
            typical,
            _folder: folder,
        }
    }

    fn tiny() -> Measure {
        let folder = quick_dir();
        let mut world = World::tiny(folder.path(), 1);
        world.options.settings.quota_bytes = Some(280 << 10);
        Measure::take(world, folder, SCRIPT)
    }

    /// The folder after a number of steps.
    fn lay_out(&self, steps: usize) {
        let _ = fs::remove_dir_all(self.world.dir());
        if steps > 0 {
            copy(&self.folders.join(steps.to_string()), self.world.dir());
        }
    }

    fn start(&self, from: usize, nth: Option<usize>) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["kill::child_tells_the_script", "--exact", "--nocapture"])
            .env(MODEL, &self.world.path)
            .env(DIR, self.world.dir())
            .env(FROM, from.to_string())
            .env(
                QUOTA,
                self.world
                    .options
                    .settings
                    .quota_bytes
                    .unwrap_or(256 << 20)
                    .to_string(),
            )
            .env(
                CAPACITY,
                self.world.options.settings.capacity.unwrap().to_string(),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        if let Some(n) = nth {
            command.env(NTH, n.to_string());
        }
        if self.script.len() == SHORT.len() {
            command.env(IS_SHORT, "1");
        }
        command.spawn().unwrap()
    }

    fn state(&self, steps: usize) -> u64 {
        steps
            .checked_sub(1)
            .map_or(self.nothing, |i| self.told[i].state)
    }

    /// Resumes what a killed child has left and goes on to the end. Returns where it was.
    fn go_on(&self, acknowledged: usize, how: &str) -> usize {
        let (mut telling, refused) = Telling::resumed(&self.world);
        let left = |path: &Path| path.to_string_lossy().contains("journal-new");
        for file in fs::read_dir(self.world.dir()).into_iter().flatten() {
            let path = file.unwrap().path();
            // A file that was never acknowledged may stay until a session of that name is created again.
            let is_first = path.to_string_lossy().contains(".fork.") || acknowledged == 0;
            assert!(!left(&path) || is_first, "{how}: {path:?}");
        }
        for line in &refused {
            assert!(
                !line.contains('\n') && !line.contains("open elsewhere"),
                "{line}"
            );
        }
        let state = telling.state();
        let at = [acknowledged, acknowledged + 1]
            .into_iter()
            .find(|&steps| steps <= self.script.len() && self.state(steps) == state);
        let at = at.unwrap_or_else(|| {
            let expected = self.described.get(acknowledged.wrapping_sub(1));
            panic!(
                "{how}: not the state after {acknowledged} steps, nor one more: {refused:?}\n{}\nexpected\n{}",
                telling.describe(),
                expected.map_or("nothing", String::as_str)
            )
        });
        for (i, op) in self.script.iter().enumerate().skip(at) {
            assert_eq!(telling.step(*op), self.told[i], "{how}: step {i}, {op:?}");
        }
        assert_eq!(
            fs::read_dir(self.world.dir()).unwrap().count(),
            1 + usize::from(telling.fork.is_some()),
            "{how}: something is left over"
        );
        at
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What a dead child has acknowledged; a line that was not finished was not said.
fn acknowledged(said: &str, from: usize, measure: &Measure) -> usize {
    let mut last = from;
    for line in said
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        // The test harness writes on the same line.
        let Some((_, ack)) = line.trim_end().split_once("ack ") else {
            continue;
        };
        let (steps, state) = ack.split_once(' ').unwrap();
        last = steps.parse().unwrap();
        assert_eq!(
            state.parse(),
            Ok(measure.state(last)),
            "the child differs at {last}"
        );
    }
    last
}

/// Every call that changes the disk, of a few steps or of all: the process dies in it. `TORN_STEPS=1` for all of them.
/// When its time is over, only kinds of calls that were not met yet are: none is missed on a slow machine.
#[test]
fn killed_at_every_step_of_the_files() {
    let measure = Measure::tiny();
    let every = asked("TORN_STEPS").is_some();
    let begun = Instant::now();
    let is_over = || begun.elapsed() > Duration::from_secs(8) && !every;
    let mut kinds: BTreeMap<DiskCall, usize> = BTreeMap::new();
    let (mut killed, mut ahead) = (0, 0);
    // The fork and the steps beside it first; then whatever fits.
    let mut order: Vec<usize> = (0..measure.script.len()).collect();
    let fork = measure.script.iter().position(|op| matches!(op, Op::Fork));
    order.sort_by_key(|&i| (Some(i) != fork && i != 0, i * 7 % measure.script.len()));
    for from in order {
        if is_over() && KINDS.iter().all(|kind| kinds.contains_key(kind)) {
            break;
        }
        // Which calls there are, from a telling that is not killed.
        measure.lay_out(from);
        let faults = JournalFaults::never();
        let mut world = World::of(&measure.world.path, measure.world.dir().to_owned());
        world.options = measure.world.options.clone();
        world.options.journal_io = Some(faults.io());
        let mut telling = match from {
            0 => Telling::new(&world),
            _ => Telling::resumed(&world).0,
        };
        telling.step(measure.script[from]);
        drop(telling);
        for (n, step) in faults.calls().into_iter().enumerate() {
            // Writes are many and alike.
            if step == DiskCall::Write && n % 3 > 0 && !every {
                continue;
            }
            if is_over() && kinds.contains_key(&step) {
                continue;
            }
            measure.lay_out(from);
            let child = measure.start(from, Some(n + 1));
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.signal(), Some(9), "{:?}", output.status);
            let said = String::from_utf8_lossy(&output.stdout);
            let sure = acknowledged(&said, from, &measure);
            assert_eq!(sure, from);
            let at = measure.go_on(sure, &format!("step {from}, call {} ({step:?})", n + 1));
            ahead += at - sure;
            killed += 1;
            *kinds.entry(step).or_default() += 1;
        }
    }
    println!("killed {killed} times, {ahead} after the commit: {kinds:?}");
    for kind in KINDS {
        assert!(kinds.contains_key(&kind), "{kind:?} was never reached");
    }
}

fn killed_at_random(measure: &Measure, times: usize, most: Duration) {
    let begun = Instant::now();
    let mut dice = Dice(0x5eed_0123_4567_89ab);
    let (mut done, mut ahead, mut steps) = (0, 0, 0);
    while done < times && (done < 2 || begun.elapsed() < most) {
        let from = dice.roll(measure.script.len() - 1);
        measure.lay_out(from);
        let mut child = measure.start(from, None);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        // Now and then while it opens the files; mostly later.
        if dice.roll(8) > 0 {
            while !said.contains("open\n") && out.read_line(&mut said).unwrap() > 0 {}
        }
        let micros = measure.typical.as_micros() as usize * 5;
        std::thread::sleep(Duration::from_micros(dice.roll(micros) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        out.read_to_string(&mut said).unwrap();
        let sure = acknowledged(&said, from, measure);
        steps += sure - from;
        let at = measure.go_on(sure, &format!("from step {from}, killed after {sure}"));
        ahead += at - sure;
        done += 1;
    }
    println!(
        "{done} random kills in {:?}, {steps} steps acknowledged, {ahead} times killed after the commit and before the word",
        begun.elapsed()
    );
}

/// `TORN_KILLS=500` for the long form.
#[test]
fn killed_at_random_moments() {
    let measure = Measure::tiny();
    match asked("TORN_KILLS") {
        Some(times) => killed_at_random(&measure, times, Duration::MAX),
        None => killed_at_random(&measure, 500, Duration::from_secs(8)),
    }
}

/// The same with a real model. `TORN_KILLS_REAL=50` for the long form.
#[test]
fn killed_at_random_moments_with_a_real_model() {
    let Some(path) = real_model(SMOLLM2) else {
        return;
    };
    let folder = quick_dir();
    let mut world = World::of(&path, folder.path().join("sessions"));
    world.options.settings.quota_bytes = Some(7 << 20);
    world.options.settings.capacity = Some(130);
    let measure = Measure::take(world, folder, SHORT);
    let times = asked("TORN_KILLS_REAL").unwrap_or(2);
    killed_at_random(&measure, times, Duration::MAX);
}

/// Two processes cannot have one session, and the second one is told so in a line.
#[test]
fn a_second_process_is_refused() {
    let measure = Measure::tiny();
    measure.lay_out(4);
    let (telling, _) = Telling::resumed(&measure.world);
    let child = measure.start(4, None);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("refused session main: it is open elsewhere\n"));
    let (second, refused) = Telling::resumed(&measure.world);
    assert_eq!(refused[0], "session main: it is open elsewhere");
    assert!(second.main.is_none());
    drop(telling);
    assert!(Telling::resumed(&measure.world).0.main.is_some());
}
