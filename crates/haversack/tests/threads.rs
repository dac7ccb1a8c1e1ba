//! An engine leaves no thread behind. Alone in its program: threads are counted.
#![cfg(target_os = "linux")]

mod common;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn no_thread_is_left_after_the_last_handle() {
    let dir = tempfile::tempdir().unwrap();
    let before = threads();
    for _ in 0..3 {
        let engine = common::builder(dir.path()).threads(2).start().unwrap();
        let talk = engine.conversation("talk").open().unwrap();
        let mut answer = talk.say("Hello.").max_tokens(200).send().unwrap();
        assert!(threads() > before);
        assert!(answer.next().unwrap().is_ok());
        // The answer keeps the engine running.
        drop((engine, talk));
        assert!(answer.next().unwrap().is_ok());
    }
    assert_eq!(threads(), before);
}
