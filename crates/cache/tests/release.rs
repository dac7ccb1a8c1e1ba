//! Memory goes back to the system: resident bytes follow the ledger's live bytes.

use crate::common;

use common::*;
use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::{Backing, BlockPool, Codec, KvForm, LayerShape, Store, StoreOptions, Zones};

const SLAB: u64 = 2 << 20;

fn store(near: KvForm, far: KvForm, backing: Backing) -> Store {
    let layer = LayerShape {
        far,
        ..LayerShape::plain(3, 64, near)
    };
    Store::new(StoreOptions {
        layers: vec![layer; 6],
        zones: Zones {
            sinks: 4,
            recent: 64,
        },
        backing,
        ..StoreOptions::default()
    })
    .unwrap()
}

fn recipes() -> Vec<(KvForm, KvForm, Backing)> {
    let int8 = KvForm::both(Codec::Int8.form());
    let int4 = KvForm::both(Codec::Int4.form());
    let mut recipes = vec![
        (KvForm::F16, KvForm::F16, Backing::Private),
        (int8, int4, Backing::Private),
    ];
    if cfg!(target_os = "linux") {
        recipes.push((KvForm::F16, KvForm::F16, Backing::Memfd));
    }
    recipes
}

#[test]
fn evicting_gives_pages_back() {
    for (near, far, backing) in recipes() {
        let mut store = store(near, far, backing);
        let id = store.open().unwrap();
        let tokens: Vec<u32> = (0..8192).collect();
        for chunk in tokens.chunks(512) {
            feed(&mut store, id, chunk).unwrap();
        }
        let Some(before) = resident_bytes(&store) else {
            println!("skipped: this system does not say what is resident");
            return;
        };
        let ledger = store.ledger();
        assert!(
            before as usize >= ledger.kv_live,
            "every live block was written"
        );
        assert!(before as usize <= ledger.mapped);

        let params = WindowParams {
            anchors: 64,
            window: 4096 - 64,
        };
        let plan = plan(&store.snapshot(id).unwrap(), &params);
        let applied = store.apply(id, &plan).unwrap();
        let after = resident_bytes(&store).unwrap();
        let freed = applied.slabs_released as u64 * SLAB;
        assert!(applied.slabs_released > 0, "{plan}");
        assert!(
            (before - after) as f64 >= 0.95 * freed as f64,
            "{before} to {after}"
        );
        assert!(applied.bytes_freed * 10 >= ledger.kv_live * 4, "{plan}");

        // What is left is scattered over slabs; packed, it takes no more than one slab of each pool
        // beyond its own bytes.
        store.compact_below(100).unwrap();
        let packed = resident_bytes(&store).unwrap();
        let pools = store.pool_stats().len() as u64;
        assert!(packed <= after);
        let live = store.ledger().kv_live as u64;
        assert!(packed <= live + pools * 2 * SLAB, "{packed} for {live}");

        store.close(id).unwrap();
        assert_eq!(resident_bytes(&store), Some(0), "nothing is left");
    }
}

/// Full slabs move to huge pages only while the budget has room for the copy.
#[test]
#[cfg(target_os = "linux")]
fn huge_pages_need_room_in_the_budget() {
    use haversack_memory::Effect;

    let int8 = KvForm::both(Codec::Int8.form());
    let int4 = KvForm::both(Codec::Int4.form());
    let run = |budget: Option<usize>| {
        let mut store = store(int8, int4, Backing::Private);
        store.set_budget(budget).unwrap();
        let id = store.open().unwrap();
        let tokens: Vec<u32> = (0..4096).collect();
        for chunk in tokens.chunks(512) {
            feed(&mut store, id, chunk).unwrap();
        }
        let huge = |pool: &BlockPool| match pool.arena().huge_pages() {
            Some(Effect::Active { bytes }) => bytes,
            _ => 0,
        };
        let huge: u64 = store.pools().iter().map(huge).sum();
        (huge, store.ledger().peak, resident_bytes(&store))
    };
    // Two slabs of int4 become full; when the second does, nearly all is in use.
    let (huge, peak, resident) = run(None);
    let tight = run(Some(peak));
    let roomy = run(Some(peak + 2 * SLAB as usize));
    assert_eq!((tight.1, tight.2), (peak, resident));
    assert_eq!((roomy.1, roomy.2), (peak, resident));
    if huge == 2 * SLAB {
        assert_eq!((tight.0, roomy.0), (SLAB, huge));
    } else {
        println!("skipped: the kernel put {huge} bytes into huge pages");
    }
}

/// Slabs move to huge pages while a prompt is read, not while single tokens are fed.
#[test]
fn single_tokens_leave_slabs_to_prompts() {
    let int8 = KvForm::both(Codec::Int8.form());
    let mut store = store(int8, int8, Backing::Private);
    let id = store.open().unwrap();
    let waiting = |store: &Store| -> usize {
        let pools = store.pools().iter();
        pools.map(|p| p.full_slabs().count()).sum()
    };
    let mut max = 0;
    for token in 0..4096 {
        feed(&mut store, id, &[token]).unwrap();
        max = max.max(waiting(&store));
    }
    assert_eq!(max, 4);
    feed(&mut store, id, &[7; 32]).unwrap();
    assert_eq!(waiting(&store), 0);
}

/// A long conversation in a window does not creep: pages stay within a slab or two of what is live.
#[test]
fn a_long_run_stays_flat() {
    let int8 = KvForm::both(Codec::Int8.form());
    let int4 = KvForm::both(Codec::Int4.form());
    let mut store = store(int8, int4, Backing::Private);
    let id = store.open().unwrap();
    let params = WindowParams {
        anchors: 64,
        window: 512,
    };
    let mut resident = Vec::new();
    let mut tables = Vec::new();
    for round in 0..400u32 {
        let tokens: Vec<u32> = (round * 32..round * 32 + 32).collect();
        feed(&mut store, id, &tokens).unwrap();
        let plan = plan(&store.snapshot(id).unwrap(), &params);
        store.apply(id, &plan).unwrap();
        let ledger = store.ledger();
        tables.push(ledger.tables);
        resident.extend(resident_bytes(&store));
    }
    assert_eq!(tables[40], tables[399], "tables do not grow");
    if resident.len() == 400 {
        assert_eq!(resident[40..].iter().max(), resident[380..].iter().max());
    }
    assert_eq!(store.shifts(id), [400 * 32 - 512 - 64, 0]);
}
