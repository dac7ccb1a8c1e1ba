//! Lets the linker leave Python's functions open where it asks for them.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
