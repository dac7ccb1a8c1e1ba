//! Matrix products of packed weights with one row or many.
