//! The thread that owns a driver: takes commands, reads the device and the clock, steps.

use crate::driver::Driver;
use haversack_conversations::session::Owner;
use haversack_engine::device::{Thermal, governor};
use haversack_memory::{Reading, Readings, ThermalZones};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the device is read while there is nothing to do.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// How short of memory the system says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// The engine goes by its own readings of the device.
    #[default]
    Nominal,
    /// Idle conversations move to their files, and no further request starts beside the running ones.
    Warning,
    /// Windows shrink too.
    Critical,
}

/// The device: what its files say, and what callers said of it.
pub(crate) struct Device {
    readings: Readings,
    zones: ThermalZones,
    /// Instead of the zones.
    pub thermal: Option<Thermal>,
    pub pressure: Pressure,
    /// When it is read next.
    due: Duration,
}

impl Device {
    fn open() -> Device {
        Device {
            readings: Readings::open(),
            zones: ThermalZones::open(),
            thermal: None,
            pressure: Pressure::Nominal,
            due: Duration::ZERO,
        }
    }

    /// Takes over what a caller says, and has the device read before the next step.
    pub fn set(&mut self, change: impl FnOnce(&mut Device)) {
        change(self);
        self.due = Duration::ZERO;
    }

    fn thermal(&self) -> Option<Thermal> {
        self.thermal.or_else(|| self.zones.now())
    }

    fn reading(&mut self) -> Reading {
        let read = self.readings.now();
        // A warning leaves no room for more; a critical state asks for some back.
        let left = match self.pressure {
            Pressure::Nominal => return read,
            Pressure::Warning => governor::FLOOR_BYTES + governor::LOW_BYTES,
            Pressure::Critical => 0,
        };
        Reading {
            mem_available_bytes: Some(read.mem_available_bytes.map_or(left, |n| n.min(left))),
            ..read
        }
    }
}

/// Whether the engine's thread is there and when it last came round, for callers that must not wait for it.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// The beginning of the clock of deadlines.
    started: Instant,
    /// No further request is accepted.
    pub is_stopping: AtomicBool,
    has_ended: AtomicBool,
    last_ms: AtomicU64,
}

impl Pulse {
    pub fn new() -> Pulse {
        Pulse {
            started: Instant::now(),
            is_stopping: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
        }
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub fn last(&self) -> Duration {
        Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }

    fn beat(&self) {
        let now = self.now().as_millis() as u64;
        self.last_ms.store(now, Ordering::Relaxed);
    }
}

/// Says when the thread has ended, whatever ended it.
struct EndNotice(Arc<Pulse>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

/// What a handle asks of the thread; executed between two steps.
pub(crate) type Command = Box<dyn FnOnce(&mut EngineThread) + Send>;

pub(crate) struct EngineThread {
    pub driver: Driver,
    pub device: Device,
    commands: Receiver<Command>,
    /// Commands of conversations whose last turn is being saved, or whose file is being verified.
    behind_turns: Vec<FollowingCommand>,
    pulse: Arc<Pulse>,
    pub is_stopping: bool,
}

struct FollowingCommand {
    owner: Owner,
    name: String,
    command: Command,
}

pub(crate) fn spawn(
    driver: Driver,
    pulse: Arc<Pulse>,
) -> std::io::Result<(Sender<Command>, JoinHandle<()>)> {
    let (sender, commands) = channel();
    let end = EndNotice(pulse.clone());
    let mut thread = EngineThread {
        driver,
        device: Device::open(),
        commands,
        behind_turns: Vec::new(),
        pulse,
        is_stopping: false,
    };
    let named = std::thread::Builder::new().name("haversack".into());
    let handle = named.spawn(move || {
        let _end = end;
        thread.run();
    })?;
    Ok((sender, handle))
}

impl EngineThread {
    fn run(&mut self) {
        while self.take_commands() {
            self.observe();
            self.driver.step(self.pulse.now());
            for follows in std::mem::take(&mut self.behind_turns) {
                self.follow_turn(follows.owner, follows.name, follows.command);
            }
        }
        self.driver.close();
    }

    /// Executes a command of a conversation once the turn that has ended its answer there, if there is one, is saved, and the
    /// file of one that is not in memory is verified: meanwhile others go on.
    pub fn follow_turn(&mut self, owner: Owner, name: String, command: Command) {
        self.driver.make_way(owner.session(&name));
        let mut earlier = self.behind_turns.iter();
        let waits = earlier.any(|earlier| earlier.owner == owner && earlier.name == name)
            || !(self.driver.scheduler_mut()).is_ready_for_command(owner.session(&name));
        match waits {
            true => self.behind_turns.push(FollowingCommand {
                owner,
                name,
                command,
            }),
            false => command(self),
        }
    }

    /// Executes the commands that wait; blocks while there is nothing to compute. `false`: the engine ends.
    fn take_commands(&mut self) -> bool {
        loop {
            self.pulse.beat();
            let is_idle = self.driver.is_idle();
            if is_idle {
                self.driver.publish();
            }
            // What is condensed in the background need not be done: the session's file has everything.
            if self.is_stopping && !self.driver.has_requests() {
                return false;
            }
            let command = if is_idle {
                // Idle sessions leave memory too when the device is short of it.
                let received = self.commands.recv_timeout(IDLE_INTERVAL);
                received.map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(command) => {
                    command(self);
                    // A stream of commands must not keep the device from being read.
                    if self.driver.is_idle() {
                        self.observe();
                    }
                }
                Err(TryRecvError::Empty) if is_idle => self.observe(),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => self.is_stopping = true,
            }
            if self.is_stopping && !self.driver.is_idle() {
                return true;
            }
        }
    }

    /// Reads the device, if that is due.
    fn observe(&mut self) {
        let now = self.pulse.now();
        if now >= self.device.due {
            self.device.due = now + governor::INTERVAL;
            let (thermal, reading) = (self.device.thermal(), self.device.reading());
            self.driver.observe(now, thermal, &reading);
        }
    }
}
