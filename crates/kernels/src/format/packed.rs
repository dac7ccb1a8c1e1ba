//! Weights packed for the matrix product: strips of 16 rows, four neighbouring values of each row
//! side by side.
