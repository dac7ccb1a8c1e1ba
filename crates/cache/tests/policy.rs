//! Properties of the window policy, over any snapshot that a sequence can have.

use haversack_cache::policy::window::{WindowParams, plan};
use haversack_cache::policy::{BlockSummary, EvictionPlan, Snapshot};
use proptest::prelude::*;

fn whole(position: u64) -> Snapshot {
    let block = |first: u64| BlockSummary {
        first_position: first,
        rows: (position - first).min(32) as u32,
        bytes: 1000 + first,
    };
    Snapshot {
        position,
        blocks: (0..position).step_by(32).map(block).collect(),
    }
}

/// What is left, position by position, and the bytes of the blocks that hold any of it.
fn after(snapshot: &Snapshot, plan: &EvictionPlan) -> Snapshot {
    let mut left = snapshot.clone();
    for held in &mut left.blocks {
        let first = held.first_position;
        let stays = |p: &u64| !plan.drop.iter().any(|gap| gap.contains(p));
        held.rows = (first..first + u64::from(held.rows)).filter(stays).count() as u32;
    }
    left.blocks.retain(|held| held.rows > 0);
    left
}

fn positions(snapshot: &Snapshot) -> Vec<u64> {
    let of = |held: &BlockSummary| held.first_position..held.first_position + u64::from(held.rows);
    snapshot.blocks.iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_rule_holds(
        position in 0..2000u64,
        aligned in any::<bool>(),
        anchors in 0..300u64,
        window in 0..700u64,
        earlier in (0..300u64, 0..700u64),
    ) {
        let position = if aligned { position / 32 * 32 } else { position };
        let params = WindowParams { anchors, window };
        // Some snapshots have lost rows before.
        let mut snapshot = whole(position / 32 * 32);
        let (a, w) = earlier;
        let first = plan(&snapshot, &WindowParams { anchors: a, window: w });
        snapshot = after(&snapshot, &first);
        if position % 32 > 0 {
            let first_position = snapshot.position;
            let rows = (position % 32) as u32;
            snapshot.blocks.push(BlockSummary { first_position, rows, bytes: 7 });
            snapshot.position = position;
        }

        let made = plan(&snapshot, &params);
        prop_assert_eq!(&made, &plan(&snapshot, &params), "the same again");
        let left = after(&snapshot, &made);
        prop_assert_eq!(left.rows(), made.rows_after);
        prop_assert_eq!(left.bytes(), made.bytes_after);
        prop_assert_eq!(snapshot.bytes(), made.bytes_before);

        let kept = positions(&left);
        let due = position > anchors + window;
        if !due {
            prop_assert!(made.is_empty(), "{}", made);
        }
        for p in positions(&snapshot) {
            let block_end = p / 32 * 32 + 32;
            let stays = !due || p < anchors || block_end > position - window;
            prop_assert_eq!(kept.contains(&p), stays, "position {} of {}: {}", p, position, made);
        }
        if due {
            prop_assert!(made.rows_after <= anchors + window + 31);
        }
        let again = plan(&left, &params);
        prop_assert!(again.is_empty(), "{}", again);
        let mut end = 0;
        for gap in &made.drop {
            prop_assert!(gap.start < gap.end && gap.start >= end && gap.end % 32 == 0);
            end = gap.end;
        }
    }
}

#[test]
fn a_plan_says_in_words_what_it_does() {
    let params = WindowParams {
        anchors: 64,
        window: 96,
    };
    let told = plan(&whole(320), &params).to_string();
    assert_eq!(
        told,
        "at position 320: positions 64 to 223 leave; 160 rows stay, 11440 bytes become 5800"
    );
    let told = plan(&whole(160), &params).to_string();
    assert_eq!(
        told,
        "at position 160: nothing leaves; 160 rows in 5320 bytes stay"
    );
}

/// Numbers of a request go as far as their type does.
#[test]
fn the_largest_numbers_are_answered() {
    let all = u64::MAX;
    for (anchors, window) in [(all, all), (all, 0), (0, all), (all / 2, all / 2), (0, 0)] {
        let params = WindowParams { anchors, window };
        let made = plan(&whole(320), &params);
        assert_eq!(made.is_empty(), anchors > 0 || window > 0, "{made}");
    }
}
