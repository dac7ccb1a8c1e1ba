//! What was computed for each owner lately, so that one with many requests does not delay another with few. Pure.
//!
//! Every step a load fades by a 32nd, and each running request counts as if it were to take a token in each of the next 32 steps.
//! An owner that asks seldom, or one thing at a time, has a small load, and its prompt is read first until it has had as much
//! as others. Steps are counted, not seconds: the same requests are always read in the same order.

use crate::session::Owner;

/// Loads of owners, in tokens times [`SCALE`].
#[derive(Debug, Default)]
pub struct OwnerLoads(Vec<(Owner, u64)>);

const SCALE: u64 = 256;
const FADING: u64 = 32;

impl OwnerLoads {
    /// In tokens, of an owner with so many running requests.
    pub fn of(&self, owner: Owner, running: usize) -> u64 {
        let found = self.0.iter().find(|(of, _)| *of == owner);
        let lately = found.map_or(0, |(_, load)| load / SCALE);
        lately + FADING * running as u64
    }

    /// A step has computed these tokens.
    pub fn end_step(&mut self, tokens: impl Iterator<Item = (Owner, usize)>) {
        for (_, load) in &mut self.0 {
            *load -= load.div_ceil(FADING);
        }
        for (owner, tokens) in tokens {
            let tokens = tokens as u64 * SCALE;
            match self.0.iter_mut().find(|(of, _)| *of == owner) {
                Some((_, load)) => *load += tokens,
                None => self.0.push((owner, tokens)),
            }
        }
        self.0.retain(|&(_, load)| load > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_fade_and_are_forgotten() {
        let (ann, ben) = (Owner::new("ann").unwrap(), Owner::new("ben").unwrap());
        let mut loads = OwnerLoads::default();
        for _ in 0..1000 {
            loads.end_step([(ann, 2), (ann, 4)].into_iter());
        }
        assert!((180..=192).contains(&loads.of(ann, 0)), "{loads:?}");
        loads.end_step([(ben, 100)].into_iter());
        assert!(loads.of(ben, 0) == 100 && loads.of(ann, 0) < 190);
        assert_eq!(loads.of(ben, 2), 164);
        for _ in 0..1000 {
            loads.end_step([].into_iter());
        }
        assert!(loads.0.is_empty());
    }
}
