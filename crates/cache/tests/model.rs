//! The store against a dumb twin: random lives of random stores, checked after every operation.
//!
//! The twin is a list of tokens and of what was evicted; what a layer must hold follows from it in a
//! few lines (`common::Model`). After each operation: free + live = total, references and distinct
//! blocks counted from the tables are those of the pools, all bytes are within the budget, and the
//! sequences that took part hold what the twin says, byte for byte as if their rows had been coded
//! alone. All other sequences follow every sixteen operations. An operation that fails has changed
//! nothing.
//!
//! Half a million operations by default. `HAVERSACK_MODEL_OPS=100000000` for a long run, and
//! `HAVERSACK_MODEL_SEED=…` for the life that a failure names.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    Account, CacheError, Codec, Form, KvForm, LayerShape, Ledger, PositionMode, SequenceGrowth,
    SequenceId, Store, StoreOptions, Zones,
};
use std::collections::{HashMap, HashSet};

const OPS: u64 = 500_000;
/// Test functions that share them, so that two cores are busy.
const PARTS: u64 = 4;
const OPS_PER_LIFE: u64 = 1000;
const SEQUENCES_MAX: usize = 5;
/// Tokens after which a sequence is closed.
const LONG: u64 = 230;

#[derive(Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Says which life it was, if it ends in a panic.
struct Witness {
    seed: u64,
    op: u64,
    doing: &'static str,
}

impl Drop for Witness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "HAVERSACK_MODEL_SEED={} fails at operation {} ({})",
                self.seed, self.op, self.doing
            );
        }
    }
}

fn forms(rng: &mut Rng) -> (KvForm, KvForm) {
    use Codec::*;
    let form = |codec: Codec, group| Form { codec, group };
    // Mostly floats, which are quick; every codec in turn, alone and behind a near form.
    if !rng.one_in(4) {
        return rng.pick(&[
            (KvForm::F16, KvForm::F16),
            (KvForm::F32, KvForm::F16),
            (KvForm::F32, KvForm::F32),
        ]);
    }
    let far = KvForm {
        k: form(rng.pick(&Codec::ALL), rng.pick(&[8, 32, 64])),
        v: form(rng.pick(&Codec::ALL), rng.pick(&[8, 32, 64])),
    };
    let near = rng.pick(&[far, far, KvForm::both(form(Int8, 64)), KvForm::F16]);
    (near, far)
}

fn options(rng: &mut Rng) -> StoreOptions {
    let mut layers = Vec::new();
    let (near, far) = forms(rng);
    for _ in 0..1 + rng.below(2) {
        layers.push(LayerShape {
            kv_heads: 1 + rng.below(2),
            head_dim: rng.pick(&[4, 8, 8, 16]),
            near,
            far,
            window: None,
        });
    }
    if rng.one_in(2) {
        let last = layers.len() - 1;
        layers[last].window = Some(1 + rng.below(100) as u64);
    }
    let means = match rng.below(3) {
        0 => layers
            .iter()
            .map(|l| Some((0..l.width()).map(|i| i as f32 / 8.0 - 0.5).collect()))
            .collect(),
        _ => Vec::new(),
    };
    let carries = match rng.below(3) {
        0 => layers.iter().map(|&l| Some(some_carry(l))).collect(),
        _ => Vec::new(),
    };
    let block = layers[0].near_shape().block_bytes();
    StoreOptions {
        layers,
        zones: Zones {
            sinks: rng.pick(&[0, 1, 4, 32]),
            recent: rng.pick(&[0, 32, 40, 64]),
        },
        means,
        error_feedback: carries,
        slab_bytes: Some(block * (1 + rng.below(8))),
        ..StoreOptions::default()
    }
}

struct World {
    rng: Rng,
    store: Store,
    twins: Vec<(SequenceId, Model)>,
    coder: Coder,
    token: u32,
    /// Bytes charged to the caller's account.
    side: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let options = options(&mut rng);
        let coder = Coder::new(&options);
        World {
            store: Store::new(options).unwrap(),
            rng,
            twins: Vec::new(),
            coder,
            token: 0,
            side: 0,
        }
    }

    fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n)
            .map(|_| {
                self.token += 1;
                self.token
            })
            .collect()
    }

    fn any(&mut self) -> Option<usize> {
        (!self.twins.is_empty()).then(|| self.rng.below(self.twins.len()))
    }

    /// Checks what no operation may break, then the given sequences.
    fn check(&mut self, touched: &[usize]) {
        let ledger = self.store.ledger();
        let mut references: HashMap<usize, usize> = HashMap::new();
        let mut blocks = HashSet::new();
        for (id, _) in &self.twins {
            for (layer, shape) in self.store.layers().iter().enumerate() {
                let view = self.store.view(*id, layer).unwrap();
                let sinks = (shape.sink_bytes(self.store.zones()), view.sink_block());
                let near = shape.near_shape().block_bytes();
                let far = shape.far_shape().block_bytes();
                let entries = view.entries().iter();
                let forms = entries.flat_map(|e| [(near, e.near), (far, e.far)]);
                for (size, id) in forms.chain([sinks]) {
                    if let Some(id) = id {
                        *references.entry(size).or_default() += 1;
                        blocks.insert((size, id));
                    }
                }
            }
        }
        let mut live = 0;
        for census in self.store.pool_stats() {
            assert_eq!(census.free + census.live, census.total, "free + live");
            assert_eq!(census.promised, 0, "promises end with their step");
            let size = census.block_bytes;
            let counted = references.get(&size).copied().unwrap_or(0);
            assert_eq!(census.references, counted, "references");
            let distinct = blocks.iter().filter(|b| b.0 == size).count();
            assert_eq!(census.live, distinct, "blocks in use");
            live += census.live * size;
        }
        let held = ledger.kv_live + ledger.kv_ahead;
        assert_eq!((held, ledger.kv_promised), (live, 0));
        if let Some(budget) = ledger.budget {
            assert!(ledger.total() <= budget, "{ledger:?}");
        }
        for &i in touched {
            let (id, model) = &self.twins[i];
            check_with(&self.store, &mut self.coder, *id, model);
        }
    }

    fn check_all(&mut self) {
        let all: Vec<usize> = (0..self.twins.len()).collect();
        self.check(&all);
    }

    fn open(&mut self) {
        match self.store.open() {
            Ok(id) => self.twins.push((id, Model::default())),
            Err(error) => self.expect_no_room(error),
        }
    }

    fn expect_no_room(&self, error: CacheError) {
        assert!(
            matches!(error, CacheError::CannotFit(_)) && self.store.ledger().budget.is_some(),
            "{error}"
        );
    }

    fn fork(&mut self) {
        let Some(i) = self.any() else { return };
        match self.store.fork(self.twins[i].0) {
            Ok(id) => {
                let model = self.twins[i].1.clone();
                self.twins.push((id, model));
                self.check(&[i, self.twins.len() - 1]);
            }
            Err(error) => self.expect_no_room(error),
        }
    }

    fn close(&mut self, i: usize) {
        let (id, _) = self.twins.swap_remove(i);
        self.store.close(id).unwrap();
        let closed = |e: Option<CacheError>| matches!(e, Some(CacheError::Closed { .. }));
        assert!(closed(self.store.stats(id).err()));
        assert!(closed(self.store.close(id).err()));
        assert!(closed(self.store.truncate(id, 0).err()));
        if self.twins.is_empty() {
            assert_eq!(self.store.ledger().kv_live, 0, "no block is lost");
        }
    }

    /// One to three sequences grow, or try to.
    fn step(&mut self) {
        let mut members: Vec<usize> = Vec::new();
        for _ in 0..1 + self.rng.below(6) / 3 {
            match self.any() {
                Some(i) if !members.contains(&i) => members.push(i),
                _ => {}
            }
        }
        let most = self.rng.pick(&[1, 1, 1, 1, 3, 20, 100]);
        let mut fed = Vec::new();
        let mut grow = Vec::new();
        for &i in &members {
            let n = self.rng.below(most) + 1;
            fed.push(self.tokens(n));
            grow.push(SequenceGrowth {
                id: self.twins[i].0,
                position: self.twins[i].1.position(),
                tokens: n,
            });
        }
        let before = self.store.ledger();
        let mut step = match self.store.begin(&grow) {
            Ok(step) => step,
            Err(error) => {
                self.expect_no_room(error);
                assert_eq!(self.store.ledger(), before, "nothing was taken");
                return self.check(&members);
            }
        };
        let reserved = self.store.ledger();
        let layers = self.store.layers().len();
        // Some steps end early: undone by the caller, or found out by commit.
        let until = match self.rng.below(8) {
            0 => self.rng.below(layers + 1),
            _ => layers,
        };
        for layer in 0..until {
            for (&i, tokens) in members.iter().zip(&fed) {
                let id = self.twins[i].0;
                write(&mut self.store, &mut step, id, layer, tokens).unwrap();
            }
            if layer + 1 < until || !self.rng.one_in(4) {
                self.store.settle(&mut step, layer);
            }
            let ledger = self.store.ledger();
            let blocks = |l: Ledger| l.kv_live + l.kv_ahead + l.kv_promised;
            assert_eq!(
                blocks(ledger),
                blocks(reserved),
                "a step takes what it was promised"
            );
        }
        if until < layers && self.rng.one_in(2) {
            let growth = self.store.commit(step).unwrap_err();
            assert!(matches!(growth, CacheError::Growth { .. }), "{growth}");
        } else if until < layers || self.rng.one_in(8) {
            self.store.rollback(step);
        } else {
            self.store.commit(step).unwrap();
            for (&i, tokens) in members.iter().zip(&fed) {
                let (id, model) = &mut self.twins[i];
                model.feed(tokens);
                // Without the call nothing is recoded ahead.
                if self.rng.one_in(8) {
                    continue;
                }
                self.store.recode_ahead(exec(), *id, tokens.len()).unwrap();
            }
            return self.check(&members);
        }
        let after = self.store.ledger();
        assert_eq!(
            (after.kv_live, after.kv_promised),
            (before.kv_live, 0),
            "as if it had not begun"
        );
        self.check(&members);
    }

    fn truncate(&mut self) {
        let Some(i) = self.any() else { return };
        let (id, model) = &self.twins[i];
        let back = self.rng.pick(&[1, 5, 40, 1000]);
        let to = (model.tokens.len() + 2).saturating_sub(self.rng.below(back) + 1);
        let answer = self.store.truncate(*id, to as u64);
        if to > model.tokens.len() {
            assert!(matches!(answer, Err(CacheError::Truncate { .. })));
        } else if model.restores(&self.store, to) {
            assert_eq!(answer, Ok(()), "to {to}");
            self.twins[i].1.truncate(to);
        } else {
            let Err(CacheError::NotRestorable { asked, oldest }) = answer else {
                panic!("{answer:?}, asked for {to}");
            };
            assert_eq!(asked, to as u64);
            let range = oldest as usize..=model.tokens.len();
            assert!(!range.contains(&to));
            assert!(range.clone().all(|p| model.restores(&self.store, p)));
            assert!(oldest == 0 || !model.restores(&self.store, oldest as usize - 1));
        }
        self.check(&[i]);
    }

    fn evict(&mut self) {
        let Some(i) = self.any() else { return };
        if self.store.layers().iter().all(|l| l.window.is_some()) {
            // No layer holds what its window has passed, so a plan cannot name it.
            return;
        }
        let params = WindowParams {
            anchors: self.rng.below(80) as u64,
            window: self.rng.below(120) as u64,
        };
        let id = self.twins[i].0;
        let snapshot = self.store.snapshot(id).unwrap();
        let made = plan(&snapshot, &params);
        let before = self.store.ledger();
        let ahead = ahead_bytes(&self.store, id);
        let applied = match self.store.apply(id, &made) {
            Ok(applied) => applied,
            Err(error) => {
                // More gaps than a sequence has room for, and no bytes for a longer list.
                self.expect_no_room(error);
                assert_eq!(self.store.ledger(), before);
                return self.check(&[i]);
            }
        };
        let model = &mut self.twins[i].1;
        let rows = model.evict(&params);
        assert_eq!(rows > 0, !made.is_empty(), "{made}");
        let stats = self.store.stats(id).unwrap();
        assert_eq!(stats.bytes as u64, made.bytes_after, "{made}");
        // A far form that a fork reads counts as live, even if it is only recoded ahead here.
        let most = made.bytes_before - made.bytes_after + ahead;
        assert!(applied.bytes_freed as u64 <= most);
        let again = plan(&self.store.snapshot(id).unwrap(), &params);
        assert!(again.is_empty(), "the second time nothing leaves: {again}");
        let shifts = self.store.shifts(id);
        assert_eq!(shifts, self.twins[i].1.shifts(), "shifts");
        self.check(&[i]);
    }

    fn budget(&mut self) {
        let total = self.store.ledger().total();
        let budget = match self.rng.below(4) {
            0 => None,
            1 => Some(total.saturating_sub(1 + self.rng.below(100))),
            2 => Some(total),
            _ => Some(total + self.rng.below(20_000)),
        };
        let before = self.store.ledger();
        match self.store.set_budget(budget) {
            Ok(()) => assert!(budget.is_none_or(|b| b >= total)),
            Err(short) => {
                assert_eq!(short.minimum_bytes(), total);
                assert_eq!(self.store.ledger(), before);
            }
        }
        let bytes = self.rng.below(3000);
        let before = self.store.ledger();
        let fits = before.total() - self.side + bytes;
        let fits = bytes <= self.side || before.budget.is_none_or(|b| fits <= b);
        assert_eq!(self.store.charge(Account::Side, bytes).is_ok(), fits);
        if fits {
            // The rest of the account are the mean keys.
            assert_eq!(self.store.ledger().side, before.side - self.side + bytes);
            self.side = bytes;
        }
    }

    fn tidy(&mut self) {
        let before = self.store.ledger();
        match self.rng.below(4) {
            0 | 1 => _ = self.store.compact_below(100).unwrap(),
            _ => _ = self.store.compact_below(25).unwrap(),
        }
        assert_eq!(self.store.ledger().kv_live, before.kv_live);
        for census in self.store.pool_stats() {
            let per_slab = census.total / census.slabs.max(1);
            assert!(census.slabs_touched <= census.live || per_slab == 0);
        }
        self.check_all();
    }

    fn positions(&mut self) {
        let Some(i) = self.any() else { return };
        let to = self
            .rng
            .pick(&[PositionMode::Compact, PositionMode::Original]);
        self.store.set_positions(self.twins[i].0, to).unwrap();
        self.twins[i].1.positions = to;
        let shifts = self.store.shifts(self.twins[i].0);
        assert_eq!(shifts, self.twins[i].1.shifts());
    }
}

fn live(seed: u64, ops: u64) {
    let mut witness = Witness {
        seed,
        op: 0,
        doing: "new",
    };
    let mut world = World::new(seed);
    for op in 0..ops {
        witness.op = op;
        let choice = world.rng.below(100);
        if world.twins.is_empty() || choice < 3 {
            witness.doing = "open";
            if world.twins.len() < SEQUENCES_MAX {
                world.open();
            }
        } else if choice < 8 {
            witness.doing = "fork";
            if world.twins.len() < SEQUENCES_MAX {
                world.fork();
            }
        } else if choice < 11 {
            witness.doing = "close";
            let i = world.rng.below(world.twins.len());
            world.close(i);
        } else if choice < 70 {
            witness.doing = "step";
            world.step();
        } else if choice < 80 {
            witness.doing = "truncate";
            world.truncate();
        } else if choice < 92 {
            witness.doing = "evict";
            world.evict();
        } else if choice < 94 {
            witness.doing = "budget";
            world.budget();
        } else if choice < 97 {
            witness.doing = "tidy";
            world.tidy();
        } else {
            witness.doing = "positions";
            world.positions();
        }
        if op % 16 == 0 {
            witness.doing = "check";
            world.check_all();
            let long = world.twins.iter().position(|t| t.1.position() > LONG);
            if let Some(i) = long {
                world.close(i);
            }
        }
        world.check(&[]);
    }
}

fn part(part: u64) {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("HAVERSACK_MODEL_SEED") {
        return live(seed, OPS_PER_LIFE);
    }
    let ops = number("HAVERSACK_MODEL_OPS").unwrap_or(OPS);
    for life in 0..ops.div_ceil(OPS_PER_LIFE * PARTS) {
        live(life * PARTS + part, OPS_PER_LIFE);
    }
}

#[test]
fn random_lives_1() {
    part(0);
}

#[test]
fn random_lives_2() {
    part(1);
}

#[test]
fn random_lives_3() {
    part(2);
}

#[test]
fn random_lives_4() {
    part(3);
}
