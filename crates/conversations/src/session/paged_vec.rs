//! A list that grows without being moved.
//!
//! A conversation has thousands of turns, told one by one. A `Vec` that doubles has up to twice what it needs, copies
//! all of it into a new place each time, and leaves a hole as large as it was: one of 8,192 turns took a megabyte more
//! for the next. A roll takes a page of [`PAGE`] at a time and leaves the others where they are.
//!
//! Invariant: every page but the last is full, and none is empty.

use std::iter::Flatten;
use std::ops::{Index, IndexMut, Range};
use std::{slice, vec};

/// Values of one page.
const PAGE: usize = 256;

#[derive(Clone, Debug)]
pub struct PagedVec<T> {
    pages: Vec<Vec<T>>,
}

impl<T> Default for PagedVec<T> {
    fn default() -> PagedVec<T> {
        PagedVec { pages: Vec::new() }
    }
}

impl<T> PagedVec<T> {
    pub fn len(&self) -> usize {
        let last = self.pages.last().map_or(0, Vec::len);
        self.pages.len().saturating_sub(1) * PAGE + last
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Bytes that it holds, used or not.
    pub fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Vec<T>>() + self.pages.len() * PAGE * size_of::<T>()
    }

    pub fn iter(&self) -> Iter<'_, T> {
        Iter {
            roll: self,
            left: 0..self.len(),
        }
    }

    pub fn iter_mut(&mut self) -> Flatten<slice::IterMut<'_, Vec<T>>> {
        self.pages.iter_mut().flatten()
    }

    pub fn push(&mut self, value: T) {
        match self.pages.last_mut() {
            Some(page) if page.len() < PAGE => page.push(value),
            _ => {
                let mut page = Vec::with_capacity(PAGE);
                page.push(value);
                self.pages.push(page);
            }
        }
    }

    /// Those behind it move up.
    pub fn remove(&mut self, i: usize) -> T {
        let removed = self.pages[i / PAGE].remove(i % PAGE);
        for page in i / PAGE + 1..self.pages.len() {
            let first = self.pages[page].remove(0);
            self.pages[page - 1].push(first);
        }
        self.pages.pop_if(|page| page.is_empty());
        removed
    }

    pub fn retain(&mut self, mut is_kept: impl FnMut(&T) -> bool) {
        let pages = std::mem::take(&mut self.pages);
        for value in pages.into_iter().flatten().filter(|v| is_kept(v)) {
            self.push(value);
        }
    }
}

impl<T> Index<usize> for PagedVec<T> {
    type Output = T;

    fn index(&self, i: usize) -> &T {
        &self.pages[i / PAGE][i % PAGE]
    }
}

impl<T> IndexMut<usize> for PagedVec<T> {
    fn index_mut(&mut self, i: usize) -> &mut T {
        &mut self.pages[i / PAGE][i % PAGE]
    }
}

impl<T> FromIterator<T> for PagedVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> PagedVec<T> {
        let mut roll = PagedVec::default();
        values.into_iter().for_each(|value| roll.push(value));
        roll
    }
}

impl<T> IntoIterator for PagedVec<T> {
    type Item = T;
    type IntoIter = Flatten<vec::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pages.into_iter().flatten()
    }
}

pub struct Iter<'a, T> {
    roll: &'a PagedVec<T>,
    left: Range<usize>,
}

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Iter {
            roll: self.roll,
            left: self.left.clone(),
        }
    }
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        self.left.next().map(|i| &self.roll[i])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<T> DoubleEndedIterator for Iter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left.next_back().map(|i| &self.roll[i])
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushed, removed and filtered as a list is, page borders in all places.
    #[test]
    fn it_is_a_list() {
        let mut roll: PagedVec<usize> = (0..3 * PAGE + 1).collect();
        let mut list: Vec<usize> = (0..3 * PAGE + 1).collect();
        let mut at = 7;
        for round in 0..4 * PAGE {
            at = (at * 31 + round) % list.len();
            match round % 5 {
                0 | 1 => {
                    roll.push(round);
                    list.push(round);
                }
                2 | 3 => assert_eq!(roll.remove(at), list.remove(at)),
                _ => {
                    roll[at] += 1;
                    list[at] += 1;
                }
            }
            assert_eq!(
                (roll.len(), roll[at % list.len()]),
                (list.len(), list[at % list.len()])
            );
        }
        assert!(roll.iter().eq(&list) && roll.iter().rev().eq(list.iter().rev()));
        roll.iter_mut().for_each(|v| *v += 1);
        roll.retain(|v| v % 3 == 0);
        let kept: Vec<usize> = list.iter().map(|v| v + 1).filter(|v| v % 3 == 0).collect();
        assert!(roll.iter().eq(&kept) && roll.pages.iter().rev().skip(1).all(|p| p.len() == PAGE));
        while !roll.is_empty() {
            roll.remove(0);
        }
        assert_eq!((roll.len(), roll.pages.len()), (0, 0));
        assert!(roll.into_iter().next().is_none());
    }

    #[test]
    fn it_holds_one_page_too_many_at_most() {
        let roll: PagedVec<[u8; 56]> = (0..10_000).map(|_| [0; 56]).collect();
        assert!(roll.bytes() - 10_000 * 56 < 2 * PAGE * 56);
    }
}
