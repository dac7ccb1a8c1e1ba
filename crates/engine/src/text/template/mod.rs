//! Chat templates: Jinja programs from a model file, run in a sandbox.
