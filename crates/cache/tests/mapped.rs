//! Mapped images: full blocks stay in the file, equal computed ones, are in memory once and never written.

use crate::common;

use common::{Coder, Model, check_with, codec_layer, feed};
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    CacheError, Codec, KvForm, LayerShape, MappedImage, Region, SequenceId, Store, StoreOptions,
    ZoneBytes, Zones,
};
use haversack_memory::FileMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// A layer of each kind: two forms, one form, a window of its own.
fn options() -> StoreOptions {
    let windowed = LayerShape {
        window: Some(70),
        ..codec_layer(1, 16, Codec::Int8, Codec::Int4)
    };
    StoreOptions {
        layers: vec![
            codec_layer(1, 32, Codec::Int8, Codec::Int4),
            LayerShape::plain(2, 16, KvForm::F16),
            windowed,
        ],
        zones: Zones {
            sinks: 4,
            recent: 40,
        },
        slab_bytes: Some(8 << 10),
        ..StoreOptions::default()
    }
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("mapped-{name}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A sequence in a file: regions from multiples of 64 on, the rest beside it.
struct Saved {
    outline: Vec<u8>,
    index: Vec<u8>,
    regions: Vec<std::ops::Range<usize>>,
    tail: Vec<Vec<u8>>,
}

impl Saved {
    fn of(store: &Store, id: SequenceId, path: &Path) -> Saved {
        let mut outline = Vec::new();
        store.outline(id, &mut outline).unwrap();
        let laid = store.mapped_layout(id).unwrap();
        let mut file = vec![7; 64];
        let mut regions = Vec::new();
        for blocks in &laid.regions {
            file.resize(file.len().next_multiple_of(64), 0);
            let start = file.len();
            blocks.iter().for_each(|b| file.extend_from_slice(b));
            regions.push(start..file.len());
        }
        std::fs::write(path, &file).unwrap();
        Saved {
            outline,
            index: laid.index,
            regions,
            tail: laid.tail,
        }
    }

    fn open_in(&self, store: &mut Store, map: &Arc<FileMap>) -> Result<SequenceId, CacheError> {
        let region = |range: &std::ops::Range<usize>| Region::new(map.clone(), range.clone());
        let regions: Vec<Region> = self.regions.iter().map(|r| region(r).unwrap()).collect();
        let tail: Vec<&[u8]> = self.tail.iter().map(Vec::as_slice).collect();
        store.restore_mapped(MappedImage {
            outline: &self.outline,
            index: &self.index,
            regions: &regions,
            tail: &tail,
        })
    }
}

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count)
        .map(|i| i.wrapping_mul(2_654_435_761) ^ seed)
        .collect()
}

fn adopted(store: &Store) -> (usize, usize, usize) {
    store.pool_stats().iter().fold((0, 0, 0), |sum, c| {
        (
            sum.0 + c.mapped,
            sum.1 + c.mapped_references,
            sum.2 + c.regions,
        )
    })
}

/// Nothing is live, reserved or mapped, and the file is unmapped.
fn check_empty(store: &Store, map: &Weak<FileMap>) {
    for census in store.pool_stats() {
        assert_eq!((census.live, census.promised), (0, 0));
        assert_eq!((census.mapped, census.regions), (0, 0));
    }
    assert_eq!(store.ledger().kv_file, 0);
    assert!(map.upgrade().is_none(), "still mapped");
}

#[test]
fn mapped_equals_computed_and_stays_in_the_file() {
    let dir = Folder::new("computed");
    for count in [1, 5, 31, 32, 33, 64, 100, 160, 333, 512] {
        let mut coder = Coder::new(&options());
        let path = dir.0.join(format!("{count}"));
        let mut computed = Store::new(options()).unwrap();
        let first = computed.open().unwrap();
        feed(&mut computed, first, &tokens(count, count)).unwrap();
        let saved = Saved::of(&computed, first, &path);
        let file = std::fs::read(&path).unwrap();

        let map = Arc::new(FileMap::open(&path).unwrap());
        let weak = Arc::downgrade(&map);
        let mut store = Store::new(options()).unwrap();
        let mut model = Model::default();
        model.feed(&tokens(count, count));
        let one = saved.open_in(&mut store, &map).unwrap();
        check_with(&store, &mut coder, one, &model);
        assert_eq!(store.stats(one), computed.stats(first));
        let alone = store.ledger();
        let (blocks, _, regions) = adopted(&store);
        assert_eq!(alone.kv_file + alone.kv_live, computed.ledger().kv_live);
        assert_eq!(blocks > 0, count >= 32);
        let two = saved.open_in(&mut store, &map).unwrap();
        drop(map);
        // Blocks are there once, references are two each; only what changes soon is there twice.
        assert_eq!(adopted(&store), (blocks, 2 * blocks, regions));
        assert_eq!(store.ledger().kv_file, alone.kv_file);
        assert_eq!(store.ledger().kv_live, 2 * alone.kv_live);
        let zones = store.zone_bytes();
        let sum = |of: fn(&ZoneBytes) -> usize| zones.iter().map(of).sum::<usize>();
        assert_eq!(sum(|z| z.bytes), 2 * alone.kv_live);
        assert_eq!(sum(|z| z.file_bytes), alone.kv_file);

        // Each goes its own way.
        let mut other = Model::default();
        other.feed(&tokens(count, count));
        for round in 0..6 {
            feed(&mut store, one, &tokens(round, 29)).unwrap();
            model.feed(&tokens(round, 29));
            feed(&mut store, two, &tokens(round + 100, 37)).unwrap();
            other.feed(&tokens(round + 100, 37));
            check_with(&store, &mut coder, one, &model);
            check_with(&store, &mut coder, two, &other);
        }
        assert_eq!(std::fs::read(&path).unwrap(), file);
        store.close(one).unwrap();
        assert_eq!(weak.upgrade().is_some(), adopted(&store).2 > 0);
        check_with(&store, &mut coder, two, &other);
        store.close(two).unwrap();
        check_empty(&store, &weak);
    }
}

/// Mapped blocks can be forked, truncated, evicted and hidden like others; writing copies them.
#[test]
fn mapped_blocks_are_forked_truncated_evicted_and_hidden() {
    let dir = Folder::new("forked");
    let path = dir.0.join("a");
    let mut coder = Coder::new(&options());
    let mut computed = Store::new(options()).unwrap();
    let first = computed.open().unwrap();
    feed(&mut computed, first, &tokens(1, 320)).unwrap();
    let saved = Saved::of(&computed, first, &path);
    let file = std::fs::read(&path).unwrap();
    let map = Arc::new(FileMap::open(&path).unwrap());
    let weak = Arc::downgrade(&map);
    let mut store = Store::new(options()).unwrap();
    let id = saved.open_in(&mut store, &map).unwrap();
    drop(map);
    let mut model = Model::default();
    model.feed(&tokens(1, 320));

    // Back into the middle of a full block, which is then written to.
    let fork = store.fork(id).unwrap();
    store.truncate(fork, 301).unwrap();
    feed(&mut store, fork, &tokens(2, 50)).unwrap();
    let mut forked = Model::default();
    forked.feed(&tokens(1, 320)[..301]);
    forked.feed(&tokens(2, 50));
    check_with(&store, &mut coder, fork, &forked);
    check_with(&store, &mut coder, id, &model);

    // Slabs are compacted around them.
    let before = adopted(&store);
    store.compact_below(100).unwrap();
    assert_eq!(adopted(&store), before);
    check_with(&store, &mut coder, fork, &forked);

    // Hidden and dropped.
    let hidden = 64..160;
    store.hide(id, std::slice::from_ref(&hidden)).unwrap();
    store.drop_hidden(id, hidden).unwrap();
    assert!(adopted(&store).1 < before.1);
    store.close(id).unwrap();

    let params = WindowParams {
        anchors: 37,
        window: 150,
    };
    let gone = plan(&store.snapshot(fork).unwrap(), &params);
    store.apply(fork, &gone).unwrap();
    forked.evict(&params);
    check_with(&store, &mut coder, fork, &forked);
    feed(&mut store, fork, &tokens(3, 90)).unwrap();
    forked.feed(&tokens(3, 90));
    check_with(&store, &mut coder, fork, &forked);
    assert_eq!(std::fs::read(&path).unwrap(), file);
    store.close(fork).unwrap();
    check_empty(&store, &weak);
}

/// The budget does not cover pages of the file; it covers the lists and the copies.
#[test]
fn the_budget_covers_copies_only() {
    let dir = Folder::new("budget");
    let path = dir.0.join("a");
    let mut computed = Store::new(options()).unwrap();
    let first = computed.open().unwrap();
    feed(&mut computed, first, &tokens(1, 500)).unwrap();
    let saved = Saved::of(&computed, first, &path);
    let map = Arc::new(FileMap::open(&path).unwrap());
    let mut roomy = Store::new(options()).unwrap();
    saved.open_in(&mut roomy, &map).unwrap();
    let needed = roomy.ledger().total();
    assert!(needed + roomy.ledger().kv_file > computed.ledger().kv_live);
    for (budget, fits) in [(needed + 512, true), (needed - 1, false)] {
        let mut store = Store::new(StoreOptions {
            budget_bytes: Some(budget),
            ..options()
        })
        .unwrap();
        let restored = saved.open_in(&mut store, &map);
        assert_eq!(restored.is_ok(), fits, "{restored:?}");
        if !fits {
            assert!(matches!(restored, Err(CacheError::CannotFit(_))));
            assert_eq!((store.ledger().kv_live, adopted(&store)), (0, (0, 0, 0)));
        }
    }
}

/// Images of other stores are refused, and nothing has changed.
#[test]
fn odd_images_are_refused() {
    let dir = Folder::new("odd");
    let path = dir.0.join("a");
    let mut computed = Store::new(options()).unwrap();
    let first = computed.open().unwrap();
    feed(&mut computed, first, &tokens(1, 170)).unwrap();
    let saved = || Saved::of(&computed, first, &path);
    let refused = |saved: Saved| {
        let map = Arc::new(FileMap::open(&path).unwrap());
        let mut store = Store::new(options()).unwrap();
        let error = saved.open_in(&mut store, &map).unwrap_err();
        assert!(matches!(error, CacheError::BadImage { .. }), "{error}");
        check_empty(&store, &{
            let weak = Arc::downgrade(&map);
            drop(map);
            weak
        });
    };
    let good = saved();
    for at in 0..good.index.len() {
        let mut odd = saved();
        odd.index[at] ^= 0x15;
        refused(odd);
    }
    for bytes in 0..good.index.len() {
        let mut odd = saved();
        odd.index.truncate(bytes);
        refused(odd);
    }
    let pools = 0..good.regions.len();
    for pool in pools.filter(|&pool| !good.regions[pool].is_empty()) {
        let mut odd = saved();
        odd.regions[pool].start += 64;
        refused(odd);
    }
    let mut odd = saved();
    odd.regions.pop();
    refused(odd);
    let mut odd = saved();
    odd.tail.clear();
    refused(odd);
    let mut odd = saved();
    odd.tail.push(odd.tail[0].clone());
    refused(odd);
}
