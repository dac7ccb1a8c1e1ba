#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| haversack_fuzz::session(data));
