//! What follows from a seed: settings of the engine, and what clients do to each server.

use crate::wire::Pace;
use std::time::Duration;

/// A small deterministic generator.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % below as u64) as usize
    }

    pub fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len())]
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub batch: usize,
    pub queue: usize,
    pub prefix_cache: usize,
    pub budget: usize,
}

impl Settings {
    pub fn new(dice: &mut Dice) -> Settings {
        Settings {
            batch: 1 + dice.roll(3),
            queue: 1 + dice.roll(3),
            prefix_cache: dice.pick(&[0, 1, 6]),
            budget: dice.pick(&[3 << 20, 6 << 20, 32 << 20]),
        }
    }
}

/// A question, and how its answer is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub text: String,
    pub max_tokens: usize,
    pub is_stream: bool,
}

const WORDS: [&str; 8] = ["one", "two", "three", "cat", "dog", "is", "the", "seven"];

impl Ask {
    /// Texts begin alike more often than not.
    fn new(dice: &mut Dice, words_max: usize) -> Ask {
        let first = dice.roll(2);
        let count = 1 + dice.roll(words_max);
        let common = dice.roll(count + 1);
        let word = |i: usize, dice: &mut Dice| match i < common {
            true => WORDS[(first + i) % WORDS.len()],
            false => dice.pick(&WORDS),
        };
        let words: Vec<&str> = (0..count).map(|i| word(i, dice)).collect();
        Ask {
            text: words.join(" "),
            max_tokens: 1 + dice.roll(24),
            is_stream: !dice.one_in(3),
        }
    }
}

/// What a client does.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Completions over one connection.
    Complete {
        asks: Vec<Ask>,
        /// All questions before the first answer.
        is_pipelined: bool,
        leaves_after: Option<usize>,
    },
    /// Turns of a session, which no other client of this server uses.
    Talk {
        session: usize,
        asks: Vec<Ask>,
        /// The whole conversation each time.
        sends_all: bool,
        leaves_after: Option<usize>,
    },
    /// Bytes that are no whole request, or none that is right.
    Send(Vec<u8>),
    /// Asks and never reads.
    Deaf(Vec<Ask>),
    Look(&'static str),
}

/// Bytes of a connection, fewer than a request has.
const SMALLEST_BUFFER: usize = 64;

#[derive(Clone, Debug)]
pub struct Client {
    pub plan: Plan,
    /// When it comes.
    pub start: Duration,
    pub pace: Pace,
    /// Of the connection, each way.
    pub buffer: usize,
}

impl Client {
    /// Reads whatever comes at once: its answer must not be cut. A client whose request does not fit its connection is still
    /// sending when it is refused before its body is read, and may not hear of it.
    pub fn is_eager(&self) -> bool {
        let pipelines = matches!(
            self.plan,
            Plan::Complete {
                is_pipelined: true,
                ..
            }
        );
        self.pace.pauses == 0 && !pipelines && self.buffer > SMALLEST_BUFFER
    }
}

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// When its clients are done.
    Calm,
    /// A signal, after this time.
    Stop(Duration),
    /// Its process is killed.
    Kill(Duration),
}

/// One server and its clients.
#[derive(Clone, Debug)]
pub struct Life {
    pub clients: Vec<Client>,
    /// When every second client leaves at once.
    pub storm: Option<Duration>,
    pub end: End,
}

pub const SESSIONS: usize = 3;

fn client(dice: &mut Dice, talks: &mut [bool; SESSIONS]) -> Client {
    let pace = match dice.roll(4) {
        0 => Pace {
            bytes: dice.pick(&[40, 300, 4000]),
            pause: Duration::from_millis(dice.pick(&[50, 400, 3000, 12_000])),
            pauses: 1 + dice.roll(4),
        },
        _ => Pace::EAGER,
    };
    let leaves_after = dice.one_in(5).then(|| dice.roll(3000));
    let asks = |dice: &mut Dice, words: usize| {
        let count = 1 + dice.roll(3);
        (0..count).map(|_| Ask::new(dice, words)).collect()
    };
    let session = dice.roll(SESSIONS);
    let plan = match dice.roll(12) {
        0..5 => Plan::Complete {
            asks: asks(dice, 60),
            is_pipelined: dice.one_in(4),
            leaves_after,
        },
        5..8 if !talks[session] => {
            talks[session] = true;
            Plan::Talk {
                session,
                asks: asks(dice, 12),
                sends_all: dice.one_in(2),
                leaves_after,
            }
        }
        8 => {
            let whole = crate::completion(&Ask::new(dice, 20));
            let whole = crate::wire::request("POST", "/v1/completions", Some(&whole));
            let mut sent = whole[..dice.roll(whole.len())].to_vec();
            if dice.one_in(2) {
                let at = dice.roll(sent.len() + 1);
                sent.splice(at..at, *b"\r\n{\xff\0");
            }
            Plan::Send(sent)
        }
        9 => Plan::Deaf(asks(dice, 10)),
        _ => Plan::Look(dice.pick(&["/health", "/metrics", "/v1/memory", "/v1/sessions"])),
    };
    let buffer = dice.pick(&[SMALLEST_BUFFER, 1000, 1 << 16]);
    Client {
        plan,
        start: Duration::from_millis(dice.roll(1500) as u64),
        pace,
        buffer,
    }
}

impl Life {
    pub fn new(dice: &mut Dice) -> Life {
        let mut talks = [false; SESSIONS];
        let count = 2 + dice.roll(9);
        let clients = (0..count).map(|_| client(dice, &mut talks)).collect();
        let when = Duration::from_millis(100 + dice.roll(2500) as u64);
        Life {
            clients,
            storm: dice
                .one_in(3)
                .then(|| Duration::from_millis(dice.roll(2000) as u64)),
            end: match dice.roll(3) {
                0 => End::Calm,
                1 => End::Stop(when),
                _ => End::Kill(when),
            },
        }
    }

    /// Looks at every session, and asks it once more.
    pub fn last(dice: &mut Dice) -> Life {
        let client = |session| Client {
            plan: Plan::Talk {
                session,
                asks: vec![Ask::new(dice, 12)],
                sends_all: false,
                leaves_after: None,
            },
            start: Duration::ZERO,
            pace: Pace::EAGER,
            buffer: 1 << 16,
        };
        Life {
            clients: (0..SESSIONS).map(client).collect(),
            storm: None,
            end: End::Calm,
        }
    }
}
