//! A small generator, so that cases are the same everywhere. Not for secrets, nor for sampling.

#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Throws that depend on the seed and on everything named in `about`.
    pub fn new(seed: u64, about: &[u64]) -> Dice {
        let mut dice = Dice(seed);
        for &number in about {
            dice.0 = dice.throw() ^ number;
        }
        dice
    }

    /// splitmix64.
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..n`; 0 for an empty range.
    pub fn below(&mut self, n: usize) -> usize {
        (self.throw() % (n as u64).max(1)) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// One of the words that `list` has with commas between them.
    pub fn word<'a>(&mut self, list: &'a str) -> &'a str {
        self.pick(&list.split(", ").collect::<Vec<&str>>())
    }

    /// This many different numbers of four digits.
    pub fn codes(&mut self, count: usize) -> Vec<String> {
        let mut codes: Vec<String> = Vec::new();
        while codes.len() < count {
            let code = format!("{}", 1000 + self.below(9000));
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }

    /// The first `count` become any of the list.
    pub fn draw<T>(&mut self, list: &mut [T], count: usize) {
        for i in 0..count {
            let other = i + self.below(list.len() - i);
            list.swap(i, other);
        }
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throws_depend_on_everything_named() {
        let first = |seed, about: &[u64]| Dice::new(seed, about).throw();
        assert_eq!(first(1, &[2, 3]), first(1, &[2, 3]));
        let all = [first(1, &[2, 3]), first(1, &[3, 2]), first(2, &[2, 3])];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        assert_eq!(Dice::new(0, &[]).below(0), 0);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut list: Vec<u32> = (0..50).collect();
        Dice::new(7, &[]).shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
