//! The thread that owns a driver: takes commands, reads the device and the clock, steps.

use crate::command::{Command, Pressure, Submit};
use crate::driver::{Driver, Listener};
use crate::error::Error;
use crate::sessions;
use haversack_conversations::scheduler::RequestId;
use haversack_engine::device::{Thermal, governor};
use haversack_memory::{Reading, Readings, ThermalZones};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the device is read while there is nothing to do.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// The device: what its files say, and what callers said of it.
struct Device {
    readings: Readings,
    zones: ThermalZones,
    /// Instead of the zones.
    thermal: Option<Thermal>,
    pressure: Pressure,
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

struct EngineThread {
    driver: Driver,
    device: Device,
    commands: Receiver<Command>,
    started: Instant,
    is_stopping: bool,
}

pub(crate) fn spawn(
    driver: Driver,
    started: Instant,
) -> std::io::Result<(Sender<Command>, JoinHandle<()>)> {
    let (sender, commands) = channel();
    let mut thread = EngineThread {
        driver,
        device: Device::open(),
        commands,
        started,
        is_stopping: false,
    };
    let named = std::thread::Builder::new().name("haversack".into());
    let handle = named.spawn(move || thread.run())?;
    Ok((sender, handle))
}

impl EngineThread {
    fn run(&mut self) {
        while self.take_commands() {
            self.observe();
            self.driver.step(self.started.elapsed());
        }
        self.driver.close();
    }

    /// Executes the commands that wait; blocks while there is nothing to compute. `false`: the engine ends.
    fn take_commands(&mut self) -> bool {
        loop {
            let is_idle = self.driver.is_idle();
            if is_idle {
                self.driver.publish();
            }
            if is_idle && self.is_stopping {
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
                    self.execute(command);
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
        let now = self.started.elapsed();
        if now >= self.device.due {
            self.device.due = now + governor::INTERVAL;
            let (thermal, reading) = (self.device.thermal(), self.device.reading());
            self.driver.observe(now, thermal, &reading);
        }
    }

    fn execute(&mut self, command: Command) {
        let scheduler = self.driver.scheduler_mut();
        match command {
            Command::Submit(submit, reply) => reply.send(self.submit(submit)),
            Command::Cancel(ids) => ids.into_iter().for_each(|id| self.driver.cancel(id)),
            Command::List(reply) => reply.send(sessions::list(scheduler)),
            Command::Conversation(name, command) => {
                sessions::execute(scheduler, &name, command);
            }
            Command::Memory(reply) => reply.send(Ok::<_, Error>(scheduler.memory_report())),
            Command::Reserve(bytes, reply) => reply.send(scheduler.reserve_bytes(bytes)),
            Command::Release(bytes) => scheduler.release_bytes(bytes),
            Command::Thermal(thermal) => {
                self.device.thermal = thermal;
                self.device.due = Duration::ZERO;
            }
            Command::Pressure(pressure) => {
                self.device.pressure = pressure;
                self.device.due = Duration::ZERO;
            }
            Command::Stop => self.is_stopping = true,
        }
    }

    /// All of the requests or none.
    fn submit(&mut self, submit: Submit) -> Result<Vec<RequestId>, Error> {
        let mut ids = Vec::new();
        let pairs = submit.requests.into_iter().zip(submit.permits);
        for (index, (request, permit)) in pairs.enumerate() {
            let events = submit.events.clone();
            let listener = Listener::new(index, submit.logprobs, events, Some(permit));
            match self.driver.submit_for(request, listener) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| self.driver.cancel(id));
                    return Err(error.into());
                }
            }
        }
        Ok(ids)
    }
}
