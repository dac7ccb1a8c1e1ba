//! Pressure stall information: how much time tasks lost waiting for memory.
//!
//! `some` is time in which at least one task waited, `full` time in which all of them did. Averages
//! are percentages; the total counts since the machine or the group began.

use std::time::Duration;

/// One reading of a `memory` pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// Percent of the last ten seconds.
    pub some_avg10: f32,
    pub full_avg10: f32,
    pub full_total_us: u64,
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`.
pub(crate) fn parse(text: &str) -> Option<Psi> {
    let field = |kind: &str, key: &str| {
        text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == kind).then_some(())?;
            words.find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
        })
    };
    let percent = |kind: &str| {
        let value = field(kind, "avg10")?.parse::<f32>().ok()?;
        (0.0..=100.0).contains(&value).then_some(value)
    };
    Some(Psi {
        some_avg10: percent("some")?,
        full_avg10: percent("full")?,
        full_total_us: field("full", "total")?.parse().ok()?,
    })
}

/// Which stall a [`PressureTrigger`] watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    Some,
    Full,
}

/// The line that arms a trigger, with the NUL that the kernel asks for. The window becomes a
/// multiple of 2 s up to 10 s, which is all that an unprivileged process may ask for, and the stall
/// lies between a microsecond and the window.
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
fn arming(stall: Stall, lost: Duration, window: Duration) -> Vec<u8> {
    const STEP_US: u128 = 2_000_000;
    const WINDOW_US_MAX: u128 = 10_000_000;
    let window = window
        .as_micros()
        .clamp(1, WINDOW_US_MAX)
        .next_multiple_of(STEP_US);
    let lost = lost.as_micros().clamp(1, window);
    let kind = match stall {
        Stall::Some => "some",
        Stall::Full => "full",
    };
    format!("{kind} {lost} {window}\0").into_bytes()
}

/// The kernel's word that tasks lost more than so much time within a window. It is asked for, never
/// waited for; the kernel gives it at most once per window.
#[derive(Debug)]
pub struct PressureTrigger {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    file: std::fs::File,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl PressureTrigger {
    /// Watches the whole machine. `None` where the kernel has no triggers or does not permit one.
    pub fn new(stall: Stall, lost: Duration, window: Duration) -> Option<PressureTrigger> {
        PressureTrigger::on("/proc/pressure/memory".as_ref(), stall, lost, window)
    }

    /// Watches one group, by its `memory.pressure`.
    pub fn on(
        path: &std::path::Path,
        stall: Stall,
        lost: Duration,
        window: Duration,
    ) -> Option<PressureTrigger> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .ok()?;
        // An ordinary file would take the line, and never fire.
        let kind = rustix::fs::fstatfs(&file).ok()?.f_type;
        if ![PROC_MAGIC, CGROUP_MAGIC, CGROUP2_MAGIC].contains(&(kind as u32)) {
            return None;
        }
        // One write: a line in two parts would be two lines.
        let line = arming(stall, lost, window);
        (file.write(&line).ok()? == line.len()).then_some(PressureTrigger { file })
    }

    /// True when the threshold was passed since the last question. Never waits.
    pub fn fired(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.file, PollFlags::PRI)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A group that was removed answers with an error for ever; that is no pressure.
        poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0)
            && fds[0].revents().contains(PollFlags::PRI)
            && !fds[0].revents().contains(PollFlags::ERR)
    }
}

/// File systems that hold pressure files, from the kernel's `magic.h`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PROC_MAGIC: u32 = 0x9fa0;
#[cfg(any(target_os = "linux", target_os = "android"))]
const CGROUP_MAGIC: u32 = 0x27_e0eb;
#[cfg(any(target_os = "linux", target_os = "android"))]
const CGROUP2_MAGIC: u32 = 0x6367_7270;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl PressureTrigger {
    /// No such thing on this system.
    pub fn new(_stall: Stall, _lost: Duration, _window: Duration) -> Option<PressureTrigger> {
        None
    }

    pub fn on(
        _path: &std::path::Path,
        _stall: Stall,
        _lost: Duration,
        _window: Duration,
    ) -> Option<PressureTrigger> {
        None
    }

    pub fn fired(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_and_garbage_is_none() {
        let text = "some avg10=1.25 avg60=0.40 avg300=0.02 total=16639112\n\
                    full avg10=0.50 avg60=0.00 avg300=0.02 total=11435965\n";
        assert_eq!(
            parse(text),
            Some(Psi {
                some_avg10: 1.25,
                full_avg10: 0.5,
                full_total_us: 11_435_965,
            })
        );
        let full = "full avg10=0 total=1\n";
        for garbage in [
            "".to_string(),
            text.lines().next().unwrap().to_string(),
            text.replace("avg10=1.25", "avg10=NaN"),
            text.replace("avg10=1.25", "avg10=inf"),
            text.replace("avg10=1.25", "avg10=-1"),
            text.replace("avg10=1.25", "avg10=101"),
            text.replace("total=11435965", "total=99999999999999999999"),
            text.replace("total=", "sum="),
            text.replace("some", "none"),
            format!("some avg10\n{full}"),
            format!("some\n{full}"),
            "\u{0}\u{0}".to_string(),
        ] {
            assert_eq!(parse(&garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_trigger_asks_only_for_what_everyone_may_have() {
        let line = |lost_us, window_us| {
            let bytes = arming(
                Stall::Some,
                Duration::from_micros(lost_us),
                Duration::from_micros(window_us),
            );
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(line(150_000, 2_000_000), "some 150000 2000000\0");
        assert_eq!(line(150_000, 2_000_001), "some 150000 4000000\0");
        assert_eq!(line(0, 0), "some 1 2000000\0");
        assert_eq!(line(u64::MAX, u64::MAX), "some 10000000 10000000\0");
        let most = arming(Stall::Full, Duration::MAX, Duration::MAX);
        assert_eq!(most, b"full 10000000 10000000\0");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_trigger_is_armed_where_the_kernel_permits_and_never_waits() {
        let second = Duration::from_secs(1);
        match PressureTrigger::new(Stall::Full, second, 2 * second) {
            None => eprintln!("SKIPPED: no pressure trigger is permitted here"),
            // Whether the machine is under pressure now is not this test's business.
            Some(trigger) => eprintln!("pressure fired: {}", trigger.fired()),
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), "/absent".as_ref(), "/proc/version".as_ref()] {
            assert!(PressureTrigger::on(path, Stall::Some, second, second).is_none());
        }
    }
}
