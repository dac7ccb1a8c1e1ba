//! Sequence images: saved, restored, mounted, damaged.

use crate::common;

use common::audit::audit;
use common::{Coder, Model, check_with, codec_layer, feed};
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{
    CacheError, Codec, Image, KvForm, LayerShape, SequenceId, StatsFormat, Store, StoreOptions,
    Zones,
};

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

struct Saved {
    outline: Vec<u8>,
    columns: Vec<Vec<u8>>,
}

impl Saved {
    fn of(store: &Store, id: SequenceId) -> Saved {
        let mut outline = Vec::new();
        store.outline(id, &mut outline).unwrap();
        let column = |block| {
            let mut bytes = Vec::new();
            store.column(id, block, &mut bytes).unwrap();
            bytes
        };
        let blocks = store.blocks(id).unwrap();
        Saved {
            outline,
            columns: blocks.into_iter().map(column).collect(),
        }
    }

    fn open_in(&self, store: &mut Store) -> Result<SequenceId, CacheError> {
        let columns: Vec<&[u8]> = self.columns.iter().map(Vec::as_slice).collect();
        store.restore(Image {
            outline: &self.outline,
            columns: &columns,
        })
    }
}

fn dice(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Whatever was fed and evicted, a restored sequence is the same, continues the same way, and has the same image.
#[test]
fn restored_equals_computed() {
    let mut coder = Coder::new(&options());
    let params = WindowParams {
        anchors: 37,
        window: 150,
    };
    let mut seed = 11;
    for round in 0..60 {
        let mut store = Store::new(options()).unwrap();
        let mut model = Model::default();
        let id = store.open().unwrap();
        // Another sequence's rows were where the blocks will be.
        let other = store.open().unwrap();
        feed(&mut store, other, &vec![round + 9; 400]).unwrap();
        store.close(other).unwrap();
        for _ in 0..dice(&mut seed) % 30 + 1 {
            let count = dice(&mut seed) as usize % 90 + 1;
            let tokens: Vec<u32> = (0..count).map(|_| dice(&mut seed) as u32).collect();
            feed(&mut store, id, &tokens).unwrap();
            model.feed(&tokens);
            if dice(&mut seed).is_multiple_of(3) {
                let plan = plan(&store.snapshot(id).unwrap(), &params);
                store.apply(id, &plan).unwrap();
                model.evict(&params);
            }
        }
        let saved = Saved::of(&store, id);
        let mut second = Store::new(options()).unwrap();
        let copy = saved.open_in(&mut second).unwrap();
        check_with(&second, &mut coder, copy, &model);
        assert_eq!(second.shifts(copy), store.shifts(id));
        assert_eq!(second.stats(copy), store.stats(id));
        let again = Saved::of(&second, copy);
        assert!(again.outline == saved.outline && again.columns == saved.columns);
        for _ in 0..3 {
            let tokens: Vec<u32> = (0..50).map(|_| dice(&mut seed) as u32).collect();
            feed(&mut second, copy, &tokens).unwrap();
            model.feed(&tokens);
        }
        check_with(&second, &mut coder, copy, &model);
        second.close(copy).unwrap();
        assert!(
            second
                .pool_stats()
                .iter()
                .all(|c| c.live == 0 && c.promised == 0)
        );
    }
}

/// A column below `first_mutable_block` never changes.
#[test]
fn final_columns_never_change() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for token in 0..700 {
        feed(&mut store, id, &[token]).unwrap();
        let settled = store.first_mutable_block(id).unwrap();
        // A layer's window drops its blocks: compare those that it has not passed.
        for block in kept.len() as u64..settled {
            let mut bytes = Vec::new();
            store.column(id, block, &mut bytes).unwrap();
            kept.push(bytes);
        }
        for (block, before) in kept.iter().enumerate().rev().take(2) {
            let mut bytes = Vec::new();
            store.column(id, block as u64, &mut bytes).unwrap();
            let plain = |bytes: &[u8]| bytes[8..12].to_vec();
            assert_eq!(plain(&bytes), plain(before), "block {block} at {token}");
        }
    }
    assert!(kept.len() > 15);
}

/// Evicted blocks come back to their place, in any order; blocks that are stored are refused.
#[test]
fn mounted_blocks_are_where_they_were() {
    let mut store = Store::new(options()).unwrap();
    let mut coder = Coder::new(&options());
    let id = store.open().unwrap();
    let tokens: Vec<u32> = (0..600).collect();
    feed(&mut store, id, &tokens).unwrap();
    let before = Saved::of(&store, id);
    let params = WindowParams {
        anchors: 64,
        window: 128,
    };
    let plan = plan(&store.snapshot(id).unwrap(), &params);
    let gap = plan.drop[0].clone();
    store.apply(id, &plan).unwrap();
    let blocks: Vec<u64> = (gap.start / 32..gap.end / 32).collect();
    let column = |block: u64| &before.columns[block as usize][..];
    let late: Vec<&[u8]> = blocks[5..].iter().map(|&b| column(b)).collect();
    let early: Vec<&[u8]> = blocks[..5].iter().map(|&b| column(b)).collect();
    store.mount(id, &late).unwrap();
    let error = store.mount(id, &late).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image of a sequence has a column that is there already"
    );
    store.mount(id, &early).unwrap();
    let mut model = Model::default();
    model.feed(&tokens);
    check_with(&store, &mut coder, id, &model);
    let unsettled = column(600 / 32);
    assert!(store.mount(id, &[unsettled]).is_err());
    assert!(store.mount(id, &[late[1], late[0]]).is_err());
}

/// A budget that is a byte short is refused, and nothing is left behind.
#[test]
fn an_image_that_does_not_fit_is_not_opened() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &(0..500).collect::<Vec<u32>>()).unwrap();
    let saved = Saved::of(&store, id);
    let mut whole = Store::new(options()).unwrap();
    saved.open_in(&mut whole).unwrap();
    let total = whole.ledger().total();
    let mut fits = 0;
    for short in [1, 100, 5000, 0] {
        let mut second = Store::new(StoreOptions {
            budget_bytes: Some(total - short),
            ..options()
        })
        .unwrap();
        let empty = second.ledger().total();
        match saved.open_in(&mut second) {
            Ok(_) => fits += 1,
            Err(CacheError::CannotFit(_)) => {
                assert!(second.ledger().kv_live == 0 && second.ledger().kv_promised == 0);
                assert!(
                    second.ledger().total() - empty < 2000,
                    "slots of a table stay"
                );
            }
            Err(error) => panic!("{error}"),
        }
        assert!(second.ledger().peak <= total - short);
    }
    assert_eq!(fits, 1);
}

/// Damaged images: truncated anywhere, any byte changed, another model's. Refused or of the same shape, never a panic.
#[test]
fn hostile_images() {
    let mut store = Store::new(options()).unwrap();
    let id = store.open().unwrap();
    feed(&mut store, id, &(0..130).collect::<Vec<u32>>()).unwrap();
    let saved = Saved::of(&store, id);
    let with = |outline: &[u8], columns: &[&[u8]]| {
        let mut second = Store::new(options()).unwrap();
        let image = Image { outline, columns };
        second.restore(image).map(|_| ())
    };
    let columns: Vec<&[u8]> = saved.columns.iter().map(Vec::as_slice).collect();
    with(&saved.outline, &columns).unwrap();
    for cut in 0..saved.outline.len() {
        assert!(with(&saved.outline[..cut], &columns).is_err());
    }
    let heads = 5 * 8 + 3 * 16;
    for at in 0..heads {
        for value in [0, 1, 7, 0x80, 0xff] {
            let mut outline = saved.outline.clone();
            outline[at] = value;
            let _ = with(&outline, &columns);
        }
    }
    for cut in [0, 7, 8, 13, 14, 100, columns[0].len() - 1] {
        let mut cut_columns = columns.clone();
        cut_columns[0] = &columns[0][..cut];
        assert!(with(&saved.outline, &cut_columns).is_err(), "{cut}");
    }
    for at in 0..14 {
        for value in [0, 1, 2, 3, 33, 0xff] {
            let mut column = saved.columns[1].clone();
            column[at] = value;
            let mut changed = columns.clone();
            changed[1] = &column;
            let _ = with(&saved.outline, &changed);
        }
    }
    let mut swapped = columns.clone();
    swapped.swap(0, 1);
    assert!(with(&saved.outline, &swapped).is_err());
    assert!(with(&saved.outline, &columns[..columns.len() - 1]).is_err());
    let mut noted = Store::new(StoreOptions {
        row_stats: Some(StatsFormat::ATTENTION),
        ..options()
    })
    .unwrap();
    assert_eq!(saved.open_in(&mut noted), Err(CacheError::NoImage));
}

/// A column is written when its rows have their final form, and a layer with a window passes it later: the restored
/// sequence is without those rows. Mounting does not bring them back either.
#[test]
fn columns_that_a_window_has_passed_since() {
    let options = options();
    let mut coder = Coder::new(&options);
    let mut store = Store::new(options.clone()).unwrap();
    let id = store.open().unwrap();
    let mut model = Model::default();
    let mut columns: Vec<Vec<u8>> = Vec::new();
    let mut outline = Vec::new();
    for end in (8..=240).step_by(8) {
        let tokens: Vec<u32> = (end - 7..=end).collect();
        feed(&mut store, id, &tokens).unwrap();
        model.feed(&tokens);
        // As a file does: final columns are written once.
        let settled = store.first_mutable_block(id).unwrap() as usize;
        for block in columns.len()..settled {
            let mut bytes = Vec::new();
            store.column(id, block as u64, &mut bytes).unwrap();
            columns.push(bytes);
        }
        outline.clear();
        store.outline(id, &mut outline).unwrap();
        let blocks = store.blocks(id).unwrap();
        let tail: Vec<Vec<u8>> = (blocks.into_iter())
            .filter(|&block| block >= settled as u64)
            .map(|block| {
                let mut bytes = Vec::new();
                store.column(id, block, &mut bytes).unwrap();
                bytes
            })
            .collect();
        let all: Vec<&[u8]> = columns.iter().chain(&tail).map(Vec::as_slice).collect();
        let mut other = Store::new(options.clone()).unwrap();
        let image = Image {
            outline: &outline,
            columns: &all,
        };
        let again = other
            .restore(image)
            .unwrap_or_else(|e| panic!("{end}: {e}"));
        check_with(&other, &mut coder, again, &model);
        audit(&other).unwrap();
    }
    let hidden = 0..96;
    store.hide(id, std::slice::from_ref(&hidden)).unwrap();
    store.drop_hidden(id, hidden).unwrap();
    let back: Vec<&[u8]> = columns[..3].iter().map(Vec::as_slice).collect();
    store.mount(id, &back).unwrap();
    store.hide(id, &[]).unwrap();
    let held = |layer| store.kept_positions(id, layer).unwrap().next();
    // Of the sinks nothing is said here: the first block had left.
    assert_eq!((held(0), held(1)), (Some(0), Some(0)));
    assert!(held(2) > Some(95), "{:?}", held(2));
    audit(&store).unwrap();
}
