//! What the tests of the store share: rows that say which token they are, and what their bytes must
//! be when the same rows are coded alone.

#![allow(dead_code)]

pub mod audit;

use haversack_cache::policy::window::WindowParams;
use haversack_cache::{
    BlockEntry, CacheError, Codec, Form, KvForm, KvShape, LayerShape, PositionMode, SequenceGrowth,
    SequenceId, Step, Store, StoreOptions, Zones,
};
use haversack_kernels::Exec;
use haversack_kernels::attention::KvView;
use haversack_kernels::cpu::Backend;
use haversack_kernels::format::kv::BLOCK_SLOTS;
use haversack_kernels::format::kv::code::{
    recode_k_head, recode_v_head, write_k_rows, write_v_rows,
};
use haversack_kernels::format::kv::error_feedback::{self, ErrorFeedback};
use haversack_kernels::ops::rotation::rotate_head;
use haversack_kernels::threads::ThreadPool;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Resident bytes of slabs according to the system; `None` if it does not say.
pub fn resident_bytes(store: &Store) -> Option<u64> {
    let mut pools = store.pools().iter();
    pools.try_fold(0, |sum, p| Some(sum + p.arena().resident_bytes()?))
}

/// One thread: most tests are about bytes, and cores are few.
pub fn exec() -> Exec<'static> {
    static POOL: OnceLock<ThreadPool> = OnceLock::new();
    Exec {
        backend: Backend::best(),
        pool: POOL.get_or_init(|| ThreadPool::new(1)),
    }
}

/// Two threads, which code several blocks at once.
pub fn exec_two() -> Exec<'static> {
    static POOL: OnceLock<ThreadPool> = OnceLock::new();
    Exec {
        backend: Backend::best(),
        pool: POOL.get_or_init(|| ThreadPool::new(2)),
    }
}

/// Keys of a token in a layer, as the model would compute them: a few mixed numbers, the same for the
/// same token.
pub fn fill(token: u32, layer: usize, side: u32, row: &mut [f32]) {
    let mut x = token
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add((layer as u32).wrapping_mul(0x85EB_CA6B))
        .wrapping_add(side.wrapping_mul(0xC2B2_AE35))
        | 1;
    for value in row {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        // Whole multiples of 1/64 within (-4, 4): exact in f16.
        *value = ((x >> 8) % 512) as f32 / 64.0 - 4.0;
    }
}

/// (token, kv_head, dim)
pub fn rows(shape: LayerShape, layer: usize, side: u32, tokens: &[u32]) -> Vec<f32> {
    let mut rows = vec![0.0; tokens.len() * shape.width()];
    for (row, &token) in rows.chunks_exact_mut(shape.width()).zip(tokens) {
        fill(token, layer, side, row);
    }
    rows
}

/// Writes one layer of a step.
pub fn write(
    store: &mut Store,
    step: &mut Step,
    id: SequenceId,
    layer: usize,
    tokens: &[u32],
) -> Result<(), CacheError> {
    let shape = store.layers()[layer];
    let (k, v) = (rows(shape, layer, 0, tokens), rows(shape, layer, 1, tokens));
    store.write(exec(), step, id, layer, &k, &v)
}

/// A whole step of one sequence.
pub fn feed(store: &mut Store, id: SequenceId, tokens: &[u32]) -> Result<(), CacheError> {
    let position = store.stats(id)?.position;
    let spans = store.max_spans_after(id, tokens.len())?;
    let mut step = store.begin(&[SequenceGrowth {
        id,
        position,
        tokens: tokens.len(),
    }])?;
    let mut most = 0;
    for layer in 0..store.layers().len() {
        if let Err(error) = write(store, &mut step, id, layer, tokens) {
            store.rollback(step);
            return Err(error);
        }
        most = most.max(store.view(id, layer)?.spans());
        store.settle(&mut step, layer);
    }
    assert_eq!(most, spans, "what attention reserves for");
    store.commit(step)?;
    store.recode_ahead(exec(), id, tokens.len())
}

/// The bytes of both forms of a block that holds exactly these tokens.
pub struct Twin {
    pub near: Vec<u8>,
    pub far: Vec<u8>,
}

/// Codes rows alone: from the model's numbers to the bytes that a store must hold.
pub struct Coder {
    layers: Vec<LayerShape>,
    means: Vec<Option<Vec<f32>>>,
    error_feedback: Vec<Option<ErrorFeedback>>,
    known: HashMap<(usize, Vec<u32>), Twin>,
}

impl Coder {
    pub fn new(options: &StoreOptions) -> Coder {
        let mut means = options.means.clone();
        means.resize(options.layers.len(), None);
        let mut carries = options.error_feedback.clone();
        carries.resize(options.layers.len(), None);
        Coder {
            error_feedback: carries,
            layers: options.layers.clone(),
            means,
            known: HashMap::new(),
        }
    }

    /// (token, kv_head, dim), centred and turned.
    pub fn rows(&self, layer: usize, side: u32, tokens: &[u32]) -> Vec<f32> {
        let shape = self.layers[layer];
        let mut rows = rows(shape, layer, side, tokens);
        if let (0, Some(mean)) = (side, &self.means[layer]) {
            for row in rows.chunks_exact_mut(shape.width()) {
                row.iter_mut().zip(mean).for_each(|(x, m)| *x -= m);
            }
        }
        let basis = shape.basis();
        for head in rows.chunks_exact_mut(shape.head_dim) {
            let to = if side == 0 { basis.k } else { basis.v };
            rotate_head(Backend::best(), to, head);
        }
        rows
    }

    fn twin(&mut self, layer: usize, tokens: &[u32]) -> &Twin {
        if self.known.len() > 2000 {
            self.known.clear();
        }
        let key = (layer, tokens.to_vec());
        if !self.known.contains_key(&key) {
            let twin = self.code(layer, tokens);
            self.known.insert(key.clone(), twin);
        }
        &self.known[&key]
    }

    fn code(&self, layer: usize, tokens: &[u32]) -> Twin {
        let shape = self.layers[layer];
        let backend = Backend::best();
        let (from, to) = (shape.near_shape(), shape.far_shape());
        let mut near = vec![0; from.block_bytes()];
        let (k, v) = near.split_at_mut(from.k_bytes());
        let carry = self.error_feedback[layer].as_ref();
        let carry = |form: Form| carry.filter(|_| ErrorFeedback::fits(form, shape.head_dim));
        let rows = self.rows(layer, 0, tokens);
        match carry(from.form.k) {
            Some(carry) => error_feedback::write_k_rows(backend, from, carry, k, 0, &rows),
            None => write_k_rows(backend, from, k, 0, &rows),
        }
        write_v_rows(backend, from, v, 0, &self.rows(layer, 1, tokens));
        let mut far = vec![0; to.block_bytes()];
        let ((near_k, near_v), (far_k, far_v)) = (
            near.split_at(from.k_bytes()),
            far.split_at_mut(to.k_bytes()),
        );
        let dim = shape.head_dim;
        for head in 0..shape.kv_heads {
            let part = |form: Form| head * form.head_bytes(dim)..(head + 1) * form.head_bytes(dim);
            let (a, b) = (from.form.k, to.form.k);
            let (src, dst) = (&near_k[part(a)], &mut far_k[part(b)]);
            match carry(b) {
                Some(carry) => {
                    error_feedback::recode_k_head(backend, dim, a, src, b, carry.head(head), dst);
                }
                None => recode_k_head(backend, dim, a, src, b, dst),
            }
            let (a, b) = (from.form.v, to.form.v);
            recode_v_head(backend, dim, a, &near_v[part(a)], b, &mut far_v[part(b)]);
        }
        Twin { near, far }
    }
}

/// Moments of queries that like some directions better than others, made up.
pub fn some_carry(shape: LayerShape) -> ErrorFeedback {
    let dim = shape.head_dim;
    let moments: Vec<f64> = (0..shape.kv_heads * dim * dim)
        .map(|n| (n / dim % dim, n % dim))
        .map(|(i, j)| 0.9f64.powi(i.abs_diff(j) as i32) + f64::from(i == j))
        .collect();
    ErrorFeedback::new(dim, &moments)
}

/// Where the bytes of one slot of one head lie: (start, len) pieces.
fn slot_pieces(
    form: Form,
    head_dim: usize,
    keys: bool,
    slot: usize,
    f: &mut dyn FnMut(usize, usize),
) {
    let mut at = 0;
    for (i, &bits) in form.codec.planes().iter().enumerate() {
        let bytes = form.plane_bytes(i, head_dim);
        let unit = (bits / 8).max(1);
        if !form.codec.is_float() {
            for byte in 0..bytes {
                let four = match keys {
                    true => byte / 4 * BLOCK_SLOTS + slot,
                    false => slot / 4 * bytes + byte,
                };
                let in_four = if keys { byte % 4 } else { slot % 4 };
                f(at + 4 * four + in_four, 1);
            }
        } else if keys {
            for line in 0..bytes / unit {
                f(at + (line * BLOCK_SLOTS + slot) * unit, unit);
            }
        } else {
            f(at + slot * bytes, bytes);
        }
        at += BLOCK_SLOTS * bytes;
    }
    for group in 0..form.groups(head_dim) {
        f(at + (group * BLOCK_SLOTS + slot) * 2, 2);
    }
}

/// The first `rows` slots of two blocks are the same.
pub fn same_slots(shape: KvShape, a: &[u8], b: &[u8], rows: usize) -> bool {
    let sides = [
        (shape.form.k, 0, true),
        (shape.form.v, shape.k_bytes(), false),
    ];
    if rows == BLOCK_SLOTS {
        return a == b;
    }
    let mut same = true;
    for (form, start, keys) in sides {
        for head in 0..shape.kv_heads {
            let start = start + head * form.head_bytes(shape.head_dim);
            for slot in 0..rows {
                slot_pieces(form, shape.head_dim, keys, slot, &mut |at, n| {
                    same &= a[start + at..start + at + n] == b[start + at..start + at + n];
                });
            }
        }
    }
    same
}

/// A dumb sequence: every token ever fed, and which positions were evicted.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub tokens: Vec<u32>,
    /// (position): was evicted.
    pub gone: Vec<bool>,
    /// Where it stood at the last eviction.
    pub evicted_at: usize,
    pub positions: PositionMode,
}

impl Model {
    pub fn feed(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.gone.resize(self.tokens.len(), false);
    }

    pub fn position(&self) -> u64 {
        self.tokens.len() as u64
    }

    pub fn truncate(&mut self, position: usize) {
        self.tokens.truncate(position);
        self.gone.truncate(position);
        if !self.gone.contains(&true) {
            self.evicted_at = 0;
        }
    }

    /// The window policy, position by position. Returns how many left.
    pub fn evict(&mut self, params: &WindowParams) -> usize {
        let position = self.tokens.len();
        let mut left = 0;
        for p in 0..position {
            let block_end = p / BLOCK_SLOTS * BLOCK_SLOTS + BLOCK_SLOTS;
            let recent = block_end as u64 + params.window > position as u64;
            if p as u64 >= params.anchors && !recent && !self.gone[p] {
                self.gone[p] = true;
                left += 1;
            }
        }
        if left > 0 {
            self.evicted_at = position;
        }
        left
    }

    /// Whether what was held at `p` is all there, in the form it had.
    pub fn restores(&self, store: &Store, p: usize) -> bool {
        let now = self.tokens.len();
        let whole = p >= self.evicted_at || !self.gone[..p].contains(&true);
        let mut then = self.clone();
        then.truncate(p);
        p == 0
            || whole
                && store.layers().iter().all(|&shape| {
                    let held = self.blocks(shape);
                    then.blocks(shape).iter().all(|&(block, rows)| {
                        let has = held.iter().any(|&(b, r)| b == block && r >= rows);
                        has && self.is_near(store, shape, block, now)
                            == self.is_near(store, shape, block, p)
                    })
                })
    }

    fn is_near(&self, store: &Store, shape: LayerShape, block: usize, position: usize) -> bool {
        let last = position.saturating_sub(1) / BLOCK_SLOTS;
        let recent = store.zones().recent.div_ceil(BLOCK_SLOTS);
        !shape.zoned() || last.saturating_sub(block) <= recent
    }

    /// For each run of kept positions: how many left after it.
    pub fn shifts(&self) -> Vec<u64> {
        let mut shifts = Vec::new();
        let mut after = 0;
        for p in (0..self.gone.len()).rev() {
            let starts_run = !self.gone[p] && self.gone.get(p + 1) == Some(&true);
            if self.positions == PositionMode::Compact && starts_run {
                shifts.push(after);
            }
            after += u64::from(self.gone[p]);
        }
        shifts.reverse();
        // The last run goes on: what is fed next belongs to it even when nothing is left of it.
        shifts.push(0);
        shifts
    }

    /// The blocks a layer must hold: (block, rows).
    pub fn blocks(&self, shape: LayerShape) -> Vec<(usize, usize)> {
        let position = self.tokens.len();
        let mut blocks = Vec::new();
        for block in 0..position.div_ceil(BLOCK_SLOTS) {
            let first = block * BLOCK_SLOTS;
            let end = position.min(first + BLOCK_SLOTS);
            let rows = (first..end).take_while(|&p| !self.gone[p]).count();
            let last = (first + BLOCK_SLOTS - 1) as u64;
            let passed = shape.window.is_some_and(|w| last + w <= position as u64);
            if rows > 0 && !passed {
                blocks.push((block, rows));
            }
        }
        blocks
    }
}

/// Bytes of far forms that were made ahead: of blocks that are still near.
pub fn ahead_bytes(store: &Store, id: SequenceId) -> u64 {
    let of = |(layer, shape): (usize, &LayerShape)| {
        let view = store.view(id, layer).unwrap();
        let near = view.entries().iter().filter(|e| e.is_near());
        let ahead = near.filter(|e| e.far.is_some()).count();
        (ahead * shape.far_shape().block_bytes()) as u64
    };
    store.layers().iter().enumerate().map(of).sum()
}

/// Everything about one sequence that can be seen.
pub fn check(store: &Store, id: SequenceId, model: &Model) {
    let mut coder = Coder::new(&StoreOptions {
        layers: store.layers().to_vec(),
        ..StoreOptions::default()
    });
    check_with(store, &mut coder, id, model);
}

pub fn check_with(store: &Store, coder: &mut Coder, id: SequenceId, model: &Model) {
    let stats = store.stats(id).unwrap();
    assert_eq!(stats.position, model.position(), "position");
    let zones = store.zones();
    let mut most_rows = 0;
    let mut bytes = 0;
    for (layer, &shape) in store.layers().iter().enumerate() {
        let view = store.view(id, layer).unwrap();
        let blocks = model.blocks(shape);
        let entries: Vec<BlockEntry> = view.entries().to_vec();
        let found: Vec<(usize, usize)> = entries
            .iter()
            .map(|e| (e.first_position as usize / BLOCK_SLOTS, e.rows as usize))
            .collect();
        assert_eq!(found, blocks, "blocks of layer {layer}");
        most_rows = most_rows.max(blocks.iter().map(|b| b.1).sum());
        check_spans(&view);
        let last = model.position().saturating_sub(1) / 32;
        for (i, &(block, rows)) in blocks.iter().enumerate() {
            let first = block * BLOCK_SLOTS;
            let is_near = !shape.zoned() || last - block as u64 <= zones.recent_blocks();
            assert_eq!(
                entries[i].near.is_some(),
                is_near,
                "near form of block {block}"
            );
            let leaves_next = is_near && last - block as u64 == zones.recent_blocks();
            let is_prepared = leaves_next && shape.zoned() && entries[i].far.is_some();
            assert_eq!(
                entries[i].far.is_none(),
                is_near && !is_prepared,
                "far form of block {block}"
            );
            let shown = view.block(i, last);
            assert_eq!((shown.rows, shown.first_position), (rows, first as u64));
            // A far block was full when it was made; a near one may have more than is kept.
            let end = model.tokens.len().min(first + BLOCK_SLOTS);
            let twin = coder.twin(layer, &model.tokens[first..end]);
            let (form, expected) = match is_near {
                true => (shape.near_shape(), &twin.near),
                false => (shape.far_shape(), &twin.far),
            };
            bytes += form.block_bytes();
            assert_eq!((shown.k.form, shown.v.form), (form.form.k, form.form.v));
            let content = [shown.k.bytes, shown.v.bytes].concat();
            assert!(
                same_slots(form, &content, expected, rows),
                "content of block {block} of layer {layer}"
            );
            if is_prepared {
                let far = shape.far_shape();
                let ahead = view.block(i, u64::MAX);
                assert_eq!((ahead.k.form, ahead.v.form), (far.form.k, far.form.v));
                let content = [ahead.k.bytes, ahead.v.bytes].concat();
                assert!(
                    same_slots(far, &content, &twin.far, rows),
                    "far form of block {block} of layer {layer}, made ahead"
                );
            }
            bytes += check_sinks(coder, layer, shape, zones, model, block, &shown);
        }
    }
    assert_eq!(stats.rows, most_rows, "rows");
    assert_eq!(stats.bytes, bytes, "bytes");
}

fn check_sinks(
    coder: &Coder,
    layer: usize,
    shape: LayerShape,
    zones: Zones,
    model: &Model,
    block: usize,
    shown: &haversack_kernels::attention::Block<'_>,
) -> usize {
    let sink_bytes = shape.sink_bytes(zones);
    let Some(sinks) = shown.sinks else {
        assert!(block > 0 || sink_bytes == 0, "sinks are there");
        return 0;
    };
    assert_eq!((block, sinks.rows), (0, zones.sinks));
    let written = zones.sinks.min(model.tokens.len());
    for (side, bytes) in [(0, sinks.k), (1, sinks.v)] {
        let rows = coder.rows(layer, side, &model.tokens[..written]);
        for (slot, row) in rows.chunks_exact(shape.width()).enumerate() {
            for (head, values) in row.chunks_exact(shape.head_dim).enumerate() {
                let at = (head * zones.sinks + slot) * shape.head_dim * 2;
                for (d, &x) in values.iter().enumerate() {
                    let stored = [bytes[at + 2 * d], bytes[at + 2 * d + 1]];
                    assert_eq!(stored, half::f16::from_f32(x).to_le_bytes(), "sink {slot}");
                }
            }
        }
    }
    sink_bytes
}

fn check_spans(view: &dyn KvView) {
    let mut next = 0;
    let mut last = None;
    for i in 0..view.spans() {
        let span = view.span(i);
        assert_eq!(span.start, next, "spans follow each other");
        assert!((1..=8).contains(&span.len()));
        let of = |i| view.block(i, 0).first_position / 256;
        assert!(span.clone().all(|b| of(b) == of(span.start)), "one 256");
        assert_ne!(last.replace(of(span.start)), Some(of(span.start)));
        next = span.end;
    }
    assert_eq!(next, view.blocks(), "spans cover the table");
}

pub fn codec_layer(kv_heads: usize, head_dim: usize, near: Codec, far: Codec) -> LayerShape {
    LayerShape {
        near: KvForm::both(near.form()),
        far: KvForm::both(far.form()),
        ..LayerShape::plain(kv_heads, head_dim, KvForm::F16)
    }
}
