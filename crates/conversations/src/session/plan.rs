//! What happens to turns before an answer: which are recalled, shown, hidden and spilled.
//!
//! [`plan`] is pure: the same turns, similarities and room give the same plan, which can be printed. It counts tokens,
//! never time.

use super::paged_vec::PagedVec;
use super::relevance::{JudgedTurn, Relevance};
use super::turns::{Turn, TurnPlace, last_from};
use std::borrow::Borrow;
use std::fmt;

/// Limits of the ephemeral stream, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnRoom {
    /// Tokens of turns in memory, the coming turn included.
    pub capacity: u64,
    /// Most tokens of the coming turn.
    pub coming: u64,
    /// Number of latest turns that stay visible whatever the question.
    pub last: usize,
    /// Most tokens to recompute for turns of which the ids alone are left; one turn is always allowed.
    pub reread: u64,
}

/// Changes before a turn, as turn numbers, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnPlan {
    /// Mounted from the file, or recomputed.
    pub recall: Vec<u64>,
    /// Stay in memory, hidden from attention.
    pub hide: Vec<u64>,
    /// In memory, and visible again.
    pub show: Vec<u64>,
    /// Leave memory.
    pub spill: Vec<u64>,
}

impl TurnPlan {
    fn lists(&self) -> [&Vec<u64>; 4] {
        [&self.recall, &self.hide, &self.show, &self.spill]
    }

    /// Drops the entries that the turns no longer agree with.
    pub fn still_true<T: Borrow<Turn>>(mut self, turns: &PagedVec<T>) -> TurnPlan {
        let keep = |numbers: &mut Vec<u64>, is_so: fn(&Turn) -> bool| {
            let holds = |number: u64| {
                let mut turns = turns.iter().map(T::borrow);
                turns.any(|turn| turn.number == number && is_so(turn))
            };
            numbers.retain(|&number| holds(number));
        };
        let is_hidden = |turn: &Turn| turn.place == TurnPlace::Live && !turn.is_visible;
        keep(&mut self.recall, |turn| turn.place == TurnPlace::Live);
        keep(&mut self.hide, is_hidden);
        keep(&mut self.show, |turn| turn.is_visible);
        keep(&mut self.spill, |turn| turn.place != TurnPlace::Live);
        self
    }

    /// Merges an earlier plan into this one. Where both name a turn, this plan wins.
    pub fn after(mut self, earlier: &TurnPlan) -> TurnPlan {
        let named: Vec<u64> = self.lists().into_iter().flatten().copied().collect();
        let lists = [
            &mut self.recall,
            &mut self.hide,
            &mut self.show,
            &mut self.spill,
        ];
        for (turns, earlier) in lists.into_iter().zip(earlier.lists()) {
            turns.extend(earlier.iter().filter(|turn| !named.contains(turn)));
            turns.sort_unstable();
        }
        self
    }
}

/// `turns 3, 7 come back; turn 5 leaves memory`, or that nothing changes.
impl fmt::Display for TurnPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (&self.recall, "comes back", "come back"),
            (&self.show, "is seen again", "are seen again"),
            (&self.hide, "is hidden", "are hidden"),
            (&self.spill, "leaves memory", "leave memory"),
        ];
        let mut first = true;
        for (turns, one, many) in parts.iter().filter(|(turns, ..)| !turns.is_empty()) {
            let list: Vec<String> = turns.iter().map(u64::to_string).collect();
            let (noun, verb) = match turns.len() {
                1 => ("turn", one),
                _ => ("turns", many),
            };
            let comma = if first { "" } else { "; " };
            write!(f, "{comma}{noun} {} {verb}", list.join(", "))?;
            first = false;
        }
        match first {
            true => write!(f, "nothing changes"),
            false => Ok(()),
        }
    }
}

/// The coming turn has more tokens than the stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a turn of {tokens} tokens, answer included, does not fit; accepted: at most {max}")]
pub struct TooLong {
    pub tokens: u64,
    pub max: u64,
}

/// Decides what has to happen so that the coming turn fits and sees the relevant turns. `similarities` is (turn); `None` =
/// unknown, or no encoder.
///
/// Tokens are given first to pinned turns and the latest few, then to relevant turns, the most similar first, wherever
/// they are, then to turns that are in memory already: hidden turns leave before visible ones, old before new.
pub fn plan<T: Borrow<Turn>>(
    turns: &PagedVec<T>,
    similarities: &[Option<f32>],
    relevance: &Relevance,
    room: &TurnRoom,
) -> Result<TurnPlan, TooLong> {
    let similarity = |i: usize| similarities.get(i).copied().flatten();
    let turn = |i: usize| -> &Turn { turns[i].borrow() };
    let all = || turns.iter().map(T::borrow);
    let pinned: u64 = all().filter(|t| t.is_pinned).map(Turn::tokens).sum();
    let Some(mut left) = room
        .capacity
        .checked_sub(pinned.saturating_add(room.coming))
    else {
        return Err(TooLong {
            tokens: room.coming,
            max: room.capacity.saturating_sub(pinned),
        });
    };
    let chosen = relevance.choose(all().enumerate().map(|(i, turn)| JudgedTurn {
        similarity: similarity(i),
        place: turn.place,
        is_visible: turn.is_visible,
    }));

    let chosen = chosen.into_iter().zip(all());
    let relevant: Vec<bool> = chosen.map(|(is_it, t)| is_it && !t.is_excluded).collect();

    let mut wanted: Vec<bool> = all().map(|t| t.is_pinned).collect();
    let mut take = |i: usize, wanted: &mut [bool]| {
        if !wanted[i] && turn(i).tokens() <= left {
            wanted[i] = true;
            left -= turn(i).tokens();
        }
    };
    // Newest first: if not even these fit, the older one is left out.
    for i in (last_from(all(), room.last)..turns.len()).rev() {
        // Being recent is no reason to recompute a turn, and parts of a long message are as many as they are.
        if turn(i).place != TurnPlace::Ids && !turn(i).is_part && !turn(i).is_excluded {
            take(i, &mut wanted);
        }
    }
    let mut by_similarity: Vec<usize> = (0..turns.len()).filter(|&i| relevant[i]).collect();
    by_similarity.sort_by(|&a, &b| {
        let score = |i| similarity(i).unwrap_or(f32::NEG_INFINITY);
        score(b).total_cmp(&score(a)).then(b.cmp(&a))
    });
    let mut reread = 0;
    for i in by_similarity {
        let is_known = similarity(i).is_some() || turn(i).place == TurnPlace::Live;
        // The answer waits for what is recomputed.
        let is_quick = turn(i).place != TurnPlace::Ids
            || reread == 0
            || reread + turn(i).tokens() <= room.reread;
        if is_known && is_quick && !wanted[i] {
            take(i, &mut wanted);
            if wanted[i] && turn(i).place == TurnPlace::Ids {
                reread += turn(i).tokens();
            }
        }
    }
    // Turns of unknown similarity are fetched only as the next ones before those in memory: memory has grown, or the last
    // question needed more of it.
    for i in (0..turns.len()).rev().filter(|&i| !turn(i).is_excluded) {
        match turn(i).place {
            TurnPlace::Spilled if relevant[i] && similarity(i).is_none() => take(i, &mut wanted),
            _ => {}
        }
        if !wanted[i] {
            break;
        }
    }
    let seen = wanted.clone();
    let live = |i: &usize| turn(*i).place == TurnPlace::Live;
    for is_visible in [true, false] {
        for i in (0..turns.len()).rev().filter(live) {
            if turn(i).is_visible == is_visible {
                take(i, &mut wanted);
            }
        }
    }

    let mut plan = TurnPlan::default();
    for (i, turn) in all().enumerate() {
        match (turn.place, seen[i], wanted[i]) {
            (TurnPlace::Live, true, _) if !turn.is_visible => plan.show.push(turn.number),
            (TurnPlace::Live, true, _) => {}
            (TurnPlace::Live, false, false) => plan.spill.push(turn.number),
            (TurnPlace::Live, false, true) if turn.is_visible => plan.hide.push(turn.number),
            (TurnPlace::Live, false, true) => {}
            (_, true, _) => plan.recall.push(turn.number),
            (_, false, _) => {}
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: u64, tokens: u64, place: TurnPlace) -> Turn {
        Turn {
            number,
            span: number * 1000..number * 1000 + tokens,
            place,
            is_visible: place == TurnPlace::Live,
            is_pinned: false,
            is_excluded: false,
            is_state: false,
            is_part: false,
        }
    }

    fn room(capacity: u64, coming: u64) -> TurnRoom {
        TurnRoom {
            capacity,
            coming,
            last: 2,
            reread: 100,
        }
    }

    #[test]
    fn plans_merge() {
        let earlier = TurnPlan {
            recall: vec![1],
            hide: vec![5],
            show: vec![2],
            spill: vec![0, 3],
        };
        let later = TurnPlan {
            show: vec![5],
            spill: vec![2, 4],
            ..TurnPlan::default()
        };
        let words = later.after(&earlier).to_string();
        let expected = "turn 1 comes back; turn 5 is seen again; turns 0, 2, 3, 4 leave memory";
        assert_eq!(words, expected);
        let nothing = TurnPlan::default();
        assert_eq!(nothing.clone().after(&earlier), earlier);
        assert_eq!(earlier.clone().after(&nothing), earlier);
    }

    #[test]
    fn entries_that_are_no_longer_true_are_dropped() {
        let mut hidden = turn(2, 10, TurnPlace::Live);
        hidden.is_visible = false;
        let turns: PagedVec<Turn> = [
            turn(0, 10, TurnPlace::Spilled),
            turn(1, 10, TurnPlace::Live),
            hidden,
            turn(3, 10, TurnPlace::Ids),
        ]
        .into_iter()
        .collect();
        let all = vec![0, 1, 2, 3, 4];
        let done = TurnPlan {
            recall: all.clone(),
            hide: all.clone(),
            show: all.clone(),
            spill: all,
        };
        let holds = TurnPlan {
            recall: vec![1, 2],
            hide: vec![2],
            show: vec![1],
            spill: vec![0, 3],
        };
        assert_eq!(done.still_true(&turns), holds);
    }

    #[test]
    fn the_oldest_turns_leave_whole() {
        let turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 100, TurnPlace::Live)).collect();
        let plan = plan(&turns, &[], &Relevance::All, &room(400, 150)).unwrap();
        assert_eq!(plan.spill, [0, 1, 2]);
        assert_eq!(plan.to_string(), "turns 0, 1, 2 leave memory");
    }

    #[test]
    fn relevant_turns_come_back_and_displace_others() {
        let mut turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 100, TurnPlace::Live)).collect();
        turns[0] = turn(0, 100, TurnPlace::Spilled);
        turns[1] = turn(1, 100, TurnPlace::Ids);
        let similarities = [Some(0.9), Some(0.1), Some(0.3), Some(0.0), Some(0.0)];
        let relevance = Relevance::Threshold(0.6);
        let found = plan(&turns, &similarities, &relevance, &room(400, 100)).unwrap();
        assert_eq!((&found.recall[..], &found.spill[..]), (&[0][..], &[2][..]));
        // With more room it stays, hidden.
        let found = plan(&turns, &similarities, &relevance, &room(500, 100)).unwrap();
        assert_eq!((&found.hide[..], &found.spill[..]), (&[2][..], &[][..]));
        assert_eq!(found.to_string(), "turn 0 comes back; turn 2 is hidden");
    }

    #[test]
    fn recomputed_tokens_are_bounded() {
        let turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 60, TurnPlace::Ids)).collect();
        let similarities = [0.1, 0.5, 0.2, 0.9, 0.3].map(Some);
        let relevance = Relevance::Threshold(0.2);
        let recalled = |reread| {
            let room = TurnRoom {
                reread,
                ..room(1000, 100)
            };
            let found = plan(&turns, &similarities, &relevance, &room);
            found.unwrap().recall
        };
        assert_eq!(recalled(0), [3]);
        assert_eq!(recalled(120), [1, 3]);
        assert_eq!(recalled(1000), [1, 2, 3, 4]);
    }

    #[test]
    fn pinned_turns_stay_and_a_turn_too_long_is_refused() {
        let mut turns: PagedVec<Turn> = (0..4).map(|n| turn(n, 100, TurnPlace::Live)).collect();
        turns[0].is_pinned = true;
        let found = plan(&turns, &[], &Relevance::All, &room(300, 200)).unwrap();
        assert_eq!(found.spill, [1, 2, 3]);
        let error = plan(&turns, &[], &Relevance::All, &room(300, 201)).unwrap_err();
        assert!(error.to_string().ends_with("at most 200"), "{error}");
    }

    /// Random turns: after the plan the turns in memory fit, pinned turns stay visible, and no turn is in two lists.
    #[test]
    fn random_turns() {
        let mut state = 5u64;
        let mut dice = |sides: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % sides
        };
        for _ in 0..20_000 {
            let count = dice(12);
            let places = [
                TurnPlace::Live,
                TurnPlace::Live,
                TurnPlace::Spilled,
                TurnPlace::Ids,
            ];
            let mut turns: PagedVec<Turn> = (0..count)
                .map(|n| {
                    let mut turn = turn(n, dice(90) + 10, places[dice(4) as usize]);
                    turn.is_visible &= dice(2) == 0;
                    turn.is_pinned = turn.place == TurnPlace::Live && dice(10) == 0;
                    turn.is_visible |= turn.is_pinned;
                    turn
                })
                .collect();
            let similarities: Vec<Option<f32>> = (0..count)
                .map(|_| (dice(8) > 0).then(|| dice(100) as f32 / 100.0))
                .collect();
            let relevance = match dice(3) {
                0 => Relevance::All,
                1 => Relevance::Threshold(0.6),
                _ => Relevance::Top {
                    turns: dice(4) as usize,
                    hysteresis: 0.05,
                    least: 0.2,
                },
            };
            let room = room(dice(600), dice(100));
            let pinned: u64 = turns.iter().filter(|t| t.is_pinned).map(Turn::tokens).sum();
            let Ok(found) = plan(&turns, &similarities, &relevance, &room) else {
                assert!(pinned + room.coming > room.capacity);
                continue;
            };
            for turn in turns.iter_mut() {
                let lists = [&found.recall, &found.hide, &found.show, &found.spill];
                let named = lists.map(|list| list.contains(&turn.number));
                assert!(named.iter().filter(|&&n| n).count() <= 1);
                let [recall, hide, show, spill] = named;
                assert!(!(turn.is_pinned && (hide || spill)));
                assert_eq!(recall, recall && turn.place != TurnPlace::Live);
                turn.is_visible = (turn.is_visible || recall || show) && !hide && !spill;
                if recall {
                    turn.place = TurnPlace::Live;
                }
                if spill {
                    turn.place = TurnPlace::Spilled;
                }
            }
            let live = turns.iter().filter(|t| t.place == TurnPlace::Live);
            assert!(live.map(Turn::tokens).sum::<u64>() + room.coming <= room.capacity);
            if relevance == Relevance::All {
                assert!(found.hide.is_empty() || similarities.iter().any(Option::is_some));
            }
        }
    }
}
