//! Chooses other victims, or fewer. Pure: numbers in, indexes out.

/// How many rows leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimCounts {
    /// Rows that must leave, because there is no room for them.
    pub must: usize,
    /// Rows that would leave by the policy alone. At least `must`.
    pub may: usize,
}

/// Returns the candidates that leave, as sorted indexes into `own`. `own` is what each candidate would cost alone, in
/// the order in which the policy would evict them: the first `may` are its choice, the others would be next.
///
/// As long as the costs add up to more than `allowed`, the most expensive victim is spared: the next candidate that costs
/// less leaves instead, or none if fewer may leave. NaN counts as the greatest cost. Everything else leaves as the policy
/// said.
pub fn choose(own: &[f32], counts: VictimCounts, allowed: f64) -> Vec<u32> {
    let may = counts.may.min(own.len());
    let cost = |i: u32| match own[i as usize] {
        own if own.is_nan() => f64::INFINITY,
        own => f64::from(own),
    };
    // Most expensive first; of equal ones the policy's last.
    let by_cost = |list: &mut Vec<u32>| {
        list.sort_unstable_by(|&a, &b| cost(b).total_cmp(&cost(a)).then(b.cmp(&a)));
        // (candidate): what it costs together with all cheaper ones, added from the cheapest up.
        let mut together = vec![0.0; list.len() + 1];
        for i in (0..list.len()).rev() {
            together[i] = together[i + 1] + cost(list[i]);
        }
        together
    };
    let mut chosen: Vec<u32> = (0..may as u32).collect();
    let together = by_cost(&mut chosen);
    let mut others = (may as u32..own.len() as u32).peekable();
    let mut cost_instead = 0.0;
    for spared in 0..may {
        if together[spared] + cost_instead <= allowed {
            break;
        }
        let costliest = cost(chosen[spared]);
        while others.next_if(|&other| cost(other) >= costliest).is_some() {}
        let Some(other) = others.next() else {
            break;
        };
        cost_instead += cost(other);
        chosen[spared] = other;
    }
    let together = by_cost(&mut chosen);
    let fewer = chosen.len().saturating_sub(counts.must);
    let spared = (0..fewer).find(|&spared| together[spared] <= allowed);
    chosen.drain(..spared.unwrap_or(fewer));
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(own: &[f32], must: usize, may: usize, allowed: f64) -> Vec<u32> {
        choose(own, VictimCounts { must, may }, allowed)
    }

    #[test]
    fn the_policy_has_its_way_within_the_bound() {
        let own = [3.0, 1.0, 2.0, 0.0, 0.5];
        assert_eq!(run(&own, 3, 3, 6.0), [0, 1, 2]);
        assert_eq!(run(&own, 0, 3, 6.0), [0, 1, 2]);
        assert_eq!(run(&own, 0, 9, 100.0), [0, 1, 2, 3, 4]);
        assert!(run(&own, 0, 0, 0.0).is_empty());
        assert!(run(&[], 3, 3, 0.0).is_empty());
    }

    #[test]
    fn the_costliest_are_replaced_by_what_costs_less() {
        let own = [3.0, 1.0, 2.0, 0.0, 0.5];
        assert_eq!(run(&own, 3, 3, 5.9), [1, 2, 3]);
        assert_eq!(run(&own, 3, 3, 2.0), [1, 3, 4]);
        // Nothing is cheap enough: what must leave does, as cheap as can be.
        assert_eq!(run(&own, 3, 3, 0.0), [1, 3, 4]);
        // A dearer one is no substitute.
        assert_eq!(run(&[2.0, 1.0, 5.0], 2, 2, 0.0), [0, 1]);
    }

    #[test]
    fn fewer_leave_where_nothing_forces_them() {
        let own = [3.0, 1.0, 2.0];
        assert_eq!(run(&own, 0, 3, 3.0), [1, 2]);
        assert_eq!(run(&own, 0, 3, 1.5), [1]);
        assert!(run(&own, 0, 3, 0.5).is_empty());
        assert_eq!(run(&own, 2, 3, 0.5), [1, 2]);
        // Substitutes first, then less.
        assert_eq!(run(&[3.0, 1.0, 2.0, 0.25], 1, 3, 0.3), [3]);
    }

    #[test]
    fn what_is_no_number_is_costliest() {
        let own = [0.0, f32::NAN, 1.0, f32::INFINITY, 0.5];
        assert_eq!(run(&own, 2, 2, 10.0), [0, 2]);
        assert_eq!(run(&own, 0, 4, 10.0), [0, 2, 4]);
    }

    /// Whatever the numbers: as many as must, at most as many as may, and within the bound unless forced to.
    #[test]
    fn counts_and_bound_hold() {
        let mut state = 1u64;
        let mut dice = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..20_000 {
            let n = dice(20) as usize;
            let own: Vec<f32> = (0..n).map(|_| dice(100) as f32 / 10.0).collect();
            let may = dice(n as u64 + 1) as usize;
            let must = dice(may as u64 + 1) as usize;
            let allowed = dice(200) as f64 / 10.0;
            let chosen = run(&own, must, may, allowed);
            assert!(chosen.windows(2).all(|w| w[0] < w[1]));
            assert!((must..=may).contains(&chosen.len()));
            let cost = |list: &[u32]| {
                list.iter()
                    .map(|&i| f64::from(own[i as usize]))
                    .sum::<f64>()
            };
            let all: Vec<u32> = (0..may as u32).collect();
            assert!(cost(&chosen) <= cost(&all) + 1e-9);
            if cost(&chosen) > allowed + 1e-6 {
                assert_eq!(chosen.len(), must, "{own:?} {must} {may} {allowed}");
            }
            assert_eq!(chosen, run(&own, must, may, allowed));
        }
    }
}
