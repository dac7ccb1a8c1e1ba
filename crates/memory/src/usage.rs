//! What this process and this machine use, in bytes.
