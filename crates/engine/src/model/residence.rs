//! Where weights are while the model runs: left to the page cache, prefetched a layer ahead, or locked.
//!
//! Mapped pages are clean and the system may drop them; reading them again from disk in the middle
//! of a token makes a model stutter. When the file does not fit into memory, prefetching the next layer while this one is
//! computed hides part of the wait. Locking helps where there is room and other processes' files would push the weights
//! out.

use haversack_memory::Reading;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// Mapped where the weights fit, prefetch where they do not.
    #[default]
    Auto,
    Mapped,
    Prefetch,
    Locked,
}

impl Residence {
    /// What `auto` means for weights of that size on this device.
    pub fn choose(self, weights_bytes: u64, reading: &Reading) -> Residence {
        if self != Residence::Auto {
            return self;
        }
        let group = reading.cgroup.as_ref().and_then(|group| group.room_bytes());
        let rooms = [reading.mem_available_bytes, group];
        match rooms.into_iter().flatten().min() {
            Some(room) if weights_bytes > room / 10 * 9 => Residence::Prefetch,
            _ => Residence::Mapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haversack_memory::Cgroup;

    #[test]
    fn auto_prefetches_what_does_not_fit() {
        let mut reading = Reading {
            mem_available_bytes: Some(1000),
            ..Reading::default()
        };
        assert_eq!(Residence::Auto.choose(900, &reading), Residence::Mapped);
        assert_eq!(Residence::Auto.choose(901, &reading), Residence::Prefetch);
        assert_eq!(Residence::Locked.choose(901, &reading), Residence::Locked);
        reading.cgroup = Some(Cgroup {
            limit_bytes: Some(500),
            usage_bytes: Some(400),
            reclaimable_bytes: Some(300),
            ..Cgroup::default()
        });
        assert_eq!(Residence::Auto.choose(900, &reading), Residence::Prefetch);
        assert_eq!(Residence::Auto.choose(300, &reading), Residence::Mapped);
        let unknown = Reading::default();
        assert_eq!(Residence::Auto.choose(1 << 40, &unknown), Residence::Mapped);
    }
}
