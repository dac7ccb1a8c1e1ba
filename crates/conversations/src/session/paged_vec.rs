//! A list that grows without moving.
//!
//! A conversation has thousands of turns, added one by one. A `Vec` that doubles has up to twice the capacity it needs,
//! copies everything each time it grows, and leaves a hole as large as it was: with 8,192 turns the next one took a
//! megabyte more. A `PagedVec` allocates a page of [`PAGE`] values at a time and leaves the others in place.
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

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Vec<T>>() + self.pages.len() * PAGE * size_of::<T>()
    }

    pub fn iter(&self) -> PagedIter<'_, T> {
        PagedIter {
            list: self,
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

    /// Later values move up.
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
        let mut list = PagedVec::default();
        values.into_iter().for_each(|value| list.push(value));
        list
    }
}

impl<T> IntoIterator for PagedVec<T> {
    type Item = T;
    type IntoIter = Flatten<vec::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pages.into_iter().flatten()
    }
}

pub struct PagedIter<'a, T> {
    list: &'a PagedVec<T>,
    left: Range<usize>,
}

impl<T> Clone for PagedIter<'_, T> {
    fn clone(&self) -> Self {
        PagedIter {
            list: self.list,
            left: self.left.clone(),
        }
    }
}

impl<'a, T> Iterator for PagedIter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        self.left.next().map(|i| &self.list[i])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<T> DoubleEndedIterator for PagedIter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left.next_back().map(|i| &self.list[i])
    }
}

impl<T> ExactSizeIterator for PagedIter<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Behaves like a `Vec`, across page borders.
    #[test]
    fn behaves_like_a_vec() {
        let mut paged: PagedVec<usize> = (0..3 * PAGE + 1).collect();
        let mut expected: Vec<usize> = (0..3 * PAGE + 1).collect();
        let mut at = 7;
        for round in 0..4 * PAGE {
            at = (at * 31 + round) % expected.len();
            match round % 5 {
                0 | 1 => {
                    paged.push(round);
                    expected.push(round);
                }
                2 | 3 => assert_eq!(paged.remove(at), expected.remove(at)),
                _ => {
                    paged[at] += 1;
                    expected[at] += 1;
                }
            }
            assert_eq!(
                (paged.len(), paged[at % expected.len()]),
                (expected.len(), expected[at % expected.len()])
            );
        }
        assert!(paged.iter().eq(&expected) && paged.iter().rev().eq(expected.iter().rev()));
        paged.iter_mut().for_each(|v| *v += 1);
        paged.retain(|v| v % 3 == 0);
        let kept: Vec<usize> = expected
            .iter()
            .map(|v| v + 1)
            .filter(|v| v % 3 == 0)
            .collect();
        assert!(
            paged.iter().eq(&kept) && paged.pages.iter().rev().skip(1).all(|p| p.len() == PAGE)
        );
        while !paged.is_empty() {
            paged.remove(0);
        }
        assert_eq!((paged.len(), paged.pages.len()), (0, 0));
        assert!(paged.into_iter().next().is_none());
    }

    #[test]
    fn allocates_at_most_one_page_too_many() {
        let paged: PagedVec<[u8; 56]> = (0..10_000).map(|_| [0; 56]).collect();
        assert!(paged.bytes() - 10_000 * 56 < 2 * PAGE * 56);
    }
}
