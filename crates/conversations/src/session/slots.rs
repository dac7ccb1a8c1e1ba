//! Open sessions by handle: an index that is reused, and a generation that is not.

/// Handle of an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    index: u32,
    generation: u32,
}

impl SessionId {
    pub(super) fn index(self) -> usize {
        self.index as usize
    }
}

pub(super) struct Slots<T>(Vec<Slot<T>>);

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub fn new() -> Slots<T> {
        Slots(Vec::new())
    }

    pub fn insert(&mut self, value: T) -> SessionId {
        let free = self.0.iter().position(|slot| slot.value.is_none());
        let index = free.unwrap_or_else(|| {
            self.0.push(Slot {
                generation: 0,
                value: None,
            });
            self.0.len() - 1
        });
        let slot = &mut self.0[index];
        slot.value = Some(value);
        SessionId {
            index: index as u32,
            generation: slot.generation,
        }
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    pub fn get(&self, id: SessionId) -> Option<&T> {
        let slot = self.0.get(id.index())?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == id.generation)
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut T> {
        let slot = self.0.get_mut(id.index())?;
        let is_it = slot.generation == id.generation;
        slot.value.as_mut().filter(|_| is_it)
    }

    pub fn remove(&mut self, id: SessionId) -> Option<T> {
        let slot = self.0.get_mut(id.index())?;
        let value = (slot.generation == id.generation).then(|| slot.value.take())??;
        slot.generation = slot.generation.wrapping_add(1);
        Some(value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &T)> {
        self.0.iter().enumerate().filter_map(|(index, slot)| {
            let id = SessionId {
                index: index as u32,
                generation: slot.generation,
            };
            Some((id, slot.value.as_ref()?))
        })
    }
}
