//! Private anonymous memory in slabs, zero until touched.
