//! Read-only private maps of files.
