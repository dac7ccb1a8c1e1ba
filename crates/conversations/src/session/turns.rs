//! The turns of a conversation, and what becomes of them.
//!
//! A turn is a question and its answer, from the first marker of one to the last marker of the other; it is kept,
//! hidden, spilled, recalled and forgotten as a whole, so that no marker is ever without its other half.
//!
//! ```text
//!           hidden                 quota            quota
//! Live ─────────────► Spilled ─────────────► Ids ─────────► forgotten
//!   ▲  room is needed    │   blocks in a file │  ids and embedding in the file
//!   └────────────────────┘ mounted            │
//!   ▲                                         │
//!   └─────────────────────────────────────────┘ read again, at a new place
//! ```
//!
//! [`plan`] decides and is pure: the same turns, similarities and room give the same plan, which can be printed. It
//! counts tokens, never time.

use super::paged_vec::PagedVec;
use super::relevance::{Judged, Relevance};
use haversack_memory::zoo::{Bug, planted};
use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;

/// Where the rows of a turn are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Live,
    /// In the session's file, block by block.
    Spilled,
    /// Nowhere: the file has its tokens and its embedding.
    Ids,
}

/// A turn as a plan sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Counted from 0, never reused.
    pub number: u64,
    /// Positions of its tokens. A turn that was read again has new ones.
    pub span: Range<u64>,
    pub place: Place,
    /// Attention sees it. Only what is live is visible.
    pub is_visible: bool,
    /// It stays visible until somebody says otherwise.
    pub is_pinned: bool,
    /// Told and not asked, so that no answer is in it.
    pub is_state: bool,
}

impl Turn {
    pub fn tokens(&self) -> u64 {
        self.span.end - self.span.start
    }
}

/// What the ephemeral stream may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Tokens in memory, those of the turn to come included.
    pub capacity: u64,
    /// Tokens of the turn to come, at most.
    pub coming: u64,
    /// Last turns that are visible whatever they say.
    pub last: usize,
    /// Tokens that are read again at most, for turns of which nothing else is left; one turn may always be.
    pub reread: u64,
}

/// What happens before a turn. Turns are named by number, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Blocks are mounted, or tokens read again.
    pub recall: Vec<u64>,
    /// In memory and not seen.
    pub hide: Vec<u64>,
    /// In memory and seen again.
    pub show: Vec<u64>,
    /// Blocks leave memory.
    pub spill: Vec<u64>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.recall.is_empty()
            && self.hide.is_empty()
            && self.show.is_empty()
            && self.spill.is_empty()
    }

    /// As much of it as is still so.
    pub fn that_holds<T: Borrow<Turn>>(mut self, turns: &PagedVec<T>) -> Plan {
        let keep = |numbers: &mut Vec<u64>, is_so: fn(&Turn) -> bool| {
            let holds = |number: u64| {
                let mut turns = turns.iter().map(T::borrow);
                turns.any(|turn| turn.number == number && is_so(turn))
            };
            numbers.retain(|&number| holds(number));
        };
        let is_hidden = |turn: &Turn| turn.place == Place::Live && !turn.is_visible;
        keep(&mut self.recall, |turn| turn.place == Place::Live);
        keep(&mut self.hide, is_hidden);
        keep(&mut self.show, |turn| turn.is_visible);
        keep(&mut self.spill, |turn| turn.place != Place::Live);
        self
    }

    /// Both, as one. What an earlier one did to a turn is forgotten where this one does something else to it.
    pub fn after(mut self, earlier: &Plan) -> Plan {
        let here = [&self.recall, &self.hide, &self.show, &self.spill];
        let is_new = |turn: &&u64| !here.iter().any(|turns| turns.contains(turn));
        let left = |turns: &[u64]| turns.iter().filter(is_new).copied().collect::<Vec<u64>>();
        let [recall, hide, show, spill] = [
            &earlier.recall,
            &earlier.hide,
            &earlier.show,
            &earlier.spill,
        ]
        .map(|t| left(t));
        for (turns, more) in [
            (&mut self.recall, recall),
            (&mut self.hide, hide),
            (&mut self.show, show),
            (&mut self.spill, spill),
        ] {
            turns.extend(more);
            turns.sort_unstable();
        }
        self
    }
}

/// `turns 3, 7 come back; turn 5 leaves memory`, or that nothing changes.
impl fmt::Display for Plan {
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

/// The turn to come has more tokens than the stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a turn of {tokens} tokens, answer included, does not fit; accepted: at most {most}")]
pub struct TooLong {
    pub tokens: u64,
    pub most: u64,
}

/// What happens before a turn, so that it fits and sees what matters. `similarities` is (turn), and `None` where
/// nothing is known of a turn or there is no encoder.
///
/// First what must be seen: pinned turns and the last few. Then relevant turns, the most similar first, from wherever
/// they are. What room is left belongs to turns that are in memory already: hidden ones leave before visible ones, old
/// ones before new ones.
pub fn plan<T: Borrow<Turn>>(
    turns: &PagedVec<T>,
    similarities: &[Option<f32>],
    relevance: &Relevance,
    room: &Room,
) -> Result<Plan, TooLong> {
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
            most: room.capacity.saturating_sub(pinned),
        });
    };
    let relevant = relevance.choose(all().enumerate().map(|(i, turn)| Judged {
        similarity: similarity(i),
        place: turn.place,
        is_visible: turn.is_visible,
    }));

    let by_score = planted(Bug::ProtectionByScore);
    let mut wanted: Vec<bool> = all().map(|t| t.is_pinned && !by_score).collect();
    let mut take = |i: usize, wanted: &mut [bool]| {
        if !wanted[i] && turn(i).tokens() <= left {
            wanted[i] = true;
            left -= turn(i).tokens();
        }
    };
    // The newest first: where not even those fit, it is the older one that is missing.
    for i in (last_from(all(), room.last)..turns.len()).rev() {
        // What has left altogether does not come back for being recent.
        if turn(i).place != Place::Ids {
            take(i, &mut wanted);
        }
    }
    let mut by_similarity: Vec<usize> = (0..turns.len()).filter(|&i| relevant[i]).collect();
    by_similarity.sort_by(|&a, &b| {
        let score = |i| match by_score && turn(i).is_pinned {
            true => f32::MAX,
            false => similarity(i).unwrap_or(f32::NEG_INFINITY),
        };
        score(b).total_cmp(&score(a)).then(b.cmp(&a))
    });
    let mut reread = 0;
    for i in by_similarity {
        // Nothing is known of it and it is not in memory: no reason to fetch it.
        let is_known = similarity(i).is_some() || turn(i).place == Place::Live;
        // Whoever asks waits for what is read again.
        let is_quick =
            turn(i).place != Place::Ids || reread == 0 || reread + turn(i).tokens() <= room.reread;
        if is_known && is_quick && !wanted[i] {
            take(i, &mut wanted);
            if wanted[i] && turn(i).place == Place::Ids {
                reread += turn(i).tokens();
            }
        }
    }
    let seen = wanted.clone();
    let live = |i: &usize| turn(*i).place == Place::Live;
    for is_visible in [true, false] {
        for i in (0..turns.len()).rev().filter(live) {
            if turn(i).is_visible == is_visible {
                take(i, &mut wanted);
            }
        }
    }

    let mut plan = Plan::default();
    for (i, turn) in all().enumerate() {
        match (turn.place, seen[i], wanted[i]) {
            (Place::Live, true, _) if !turn.is_visible => plan.show.push(turn.number),
            (Place::Live, true, _) => {}
            (Place::Live, false, false) => plan.spill.push(turn.number),
            (Place::Live, false, true) if turn.is_visible => plan.hide.push(turn.number),
            (Place::Live, false, true) => {}
            (_, true, _) => plan.recall.push(turn.number),
            (_, false, _) => {}
        }
    }
    Ok(plan)
}

/// Where the last so many turns begin that were asked and answered.
pub fn last_from<'a>(
    turns: impl DoubleEndedIterator<Item = &'a Turn> + ExactSizeIterator,
    last: usize,
) -> usize {
    let all = turns.len();
    let asked = turns.enumerate().rev().filter(|(_, turn)| !turn.is_state);
    asked.take(last).last().map_or(all, |(i, _)| i)
}

/// Spans that attention must not see, from those it must: all else before `position`.
pub fn hidden(mut visible: Vec<Range<u64>>, position: u64) -> Vec<Range<u64>> {
    visible.sort_by_key(|span| span.start);
    let mut hidden = Vec::new();
    let mut from = 0;
    for span in visible {
        if span.start > from {
            hidden.push(from..span.start.min(position));
        }
        from = from.max(span.end);
    }
    if from < position {
        hidden.push(from..position);
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(number: u64, tokens: u64, place: Place) -> Turn {
        Turn {
            number,
            span: number * 1000..number * 1000 + tokens,
            place,
            is_visible: place == Place::Live,
            is_pinned: false,
            is_state: false,
        }
    }

    fn room(capacity: u64, coming: u64) -> Room {
        Room {
            capacity,
            coming,
            last: 2,
            reread: 100,
        }
    }

    #[test]
    fn two_plans_are_one() {
        let earlier = Plan {
            recall: vec![1],
            hide: vec![5],
            show: vec![2],
            spill: vec![0, 3],
        };
        let later = Plan {
            show: vec![5],
            spill: vec![2, 4],
            ..Plan::default()
        };
        let words = later.after(&earlier).to_string();
        let expected = "turn 1 comes back; turn 5 is seen again; turns 0, 2, 3, 4 leave memory";
        assert_eq!(words, expected);
        let nothing = Plan::default();
        assert_eq!(nothing.clone().after(&earlier), earlier);
        assert_eq!(earlier.clone().after(&nothing), earlier);
    }

    #[test]
    fn what_holds_of_a_plan() {
        let mut hidden = turn(2, 10, Place::Live);
        hidden.is_visible = false;
        let turns: PagedVec<Turn> = [
            turn(0, 10, Place::Spilled),
            turn(1, 10, Place::Live),
            hidden,
            turn(3, 10, Place::Ids),
        ]
        .into_iter()
        .collect();
        let all = vec![0, 1, 2, 3, 4];
        let done = Plan {
            recall: all.clone(),
            hide: all.clone(),
            show: all.clone(),
            spill: all,
        };
        let holds = Plan {
            recall: vec![1, 2],
            hide: vec![2],
            show: vec![1],
            spill: vec![0, 3],
        };
        assert_eq!(done.that_holds(&turns), holds);
    }

    #[test]
    fn the_oldest_leaves_whole() {
        let turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 100, Place::Live)).collect();
        let plan = plan(&turns, &[], &Relevance::All, &room(400, 150)).unwrap();
        assert_eq!(plan.spill, [0, 1, 2]);
        assert_eq!(plan.to_string(), "turns 0, 1, 2 leave memory");
    }

    #[test]
    fn what_is_relevant_comes_back_and_pushes_out_what_is_not() {
        let mut turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 100, Place::Live)).collect();
        turns[0] = turn(0, 100, Place::Spilled);
        turns[1] = turn(1, 100, Place::Ids);
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
    fn what_is_read_again_is_bounded() {
        let turns: PagedVec<Turn> = (0..5).map(|n| turn(n, 60, Place::Ids)).collect();
        let similarities = [0.1, 0.5, 0.2, 0.9, 0.3].map(Some);
        let relevance = Relevance::Threshold(0.2);
        let recalled = |reread| {
            let room = Room {
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
        let mut turns: PagedVec<Turn> = (0..4).map(|n| turn(n, 100, Place::Live)).collect();
        turns[0].is_pinned = true;
        let found = plan(&turns, &[], &Relevance::All, &room(300, 200)).unwrap();
        assert_eq!(found.spill, [1, 2, 3]);
        let error = plan(&turns, &[], &Relevance::All, &room(300, 201)).unwrap_err();
        assert!(error.to_string().ends_with("at most 200"), "{error}");
    }

    /// Random turns: what is seen fits, what must be seen is, nothing is in two lists, and once the plan is carried out
    /// the next one is empty.
    #[test]
    fn any_turns_at_all() {
        let mut state = 5u64;
        let mut dice = |sides: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % sides
        };
        for _ in 0..20_000 {
            let count = dice(12);
            let places = [Place::Live, Place::Live, Place::Spilled, Place::Ids];
            let mut turns: PagedVec<Turn> = (0..count)
                .map(|n| {
                    let mut turn = turn(n, dice(90) + 10, places[dice(4) as usize]);
                    turn.is_visible &= dice(2) == 0;
                    turn.is_pinned = turn.place == Place::Live && dice(10) == 0;
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
                assert_eq!(recall, recall && turn.place != Place::Live);
                turn.is_visible = (turn.is_visible || recall || show) && !hide && !spill;
                if recall {
                    turn.place = Place::Live;
                }
                if spill {
                    turn.place = Place::Spilled;
                }
            }
            let live = turns.iter().filter(|t| t.place == Place::Live);
            assert!(live.map(Turn::tokens).sum::<u64>() + room.coming <= room.capacity);
            if relevance == Relevance::All {
                assert!(found.hide.is_empty() || similarities.iter().any(Option::is_some));
            }
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of one range")]
    fn what_is_not_visible_is_hidden() {
        assert_eq!(hidden(vec![10..20, 0..5], 30), [5..10, 20..30]);
        assert_eq!(hidden(vec![0..30], 30), []);
        assert_eq!(hidden(vec![], 3), [0..3]);
        assert_eq!(hidden(vec![0..5, 3..9], 12), [9..12]);
    }
}
