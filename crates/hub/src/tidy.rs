//! What must be tidied when the program ends early: temporary folders, files and child processes.
//!
//! Whatever is registered here is removed when its guard drops, or by [`tidy_all`] when a signal ends the program.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

static NEXT: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Mutex<Vec<(u64, Tidy)>> = Mutex::new(Vec::new());

#[derive(Clone)]
enum Tidy {
    Child(Arc<Mutex<Child>>),
    Folder(PathBuf),
    File(PathBuf),
    /// To be removed only if nothing is in it.
    Empty(PathBuf),
    /// Every file of the folder whose name ends so.
    Ending(PathBuf, String),
}

impl Tidy {
    fn tidy(&self) {
        match self {
            Tidy::Child(child) => end(&mut lock(child)),
            Tidy::Folder(path) => remove_folder(path),
            Tidy::File(path) => drop(fs::remove_file(path)),
            Tidy::Empty(path) => {
                if fs::metadata(path).is_ok_and(|metadata| metadata.len() == 0) {
                    let _ = fs::remove_file(path);
                }
            }
            Tidy::Ending(folder, ending) => remove_ending(folder, ending),
        }
    }
}

/// Ends and removes everything registered. The registry stays locked: nothing is registered while the process ends.
pub fn tidy_all() {
    let mut registered = lock(&REGISTERED);
    // Children first: a child must not go on writing into a folder that is being removed.
    registered.sort_by_key(|(_, tidy)| !matches!(tidy, Tidy::Child(_)));
    registered.drain(..).for_each(|(_, tidy)| tidy.tidy());
    std::mem::forget(registered);
}

/// Ends a child and whatever it started: `python3` is often a script that starts the real one.
fn end(child: &mut Child) {
    // Once waited for, the number may belong to another process.
    if let Ok(Some(_)) = child.try_wait() {
        return;
    }
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process_group};
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Removes a folder, and the one above it if that is then empty.
fn remove_folder(path: &Path) {
    let _ = fs::remove_dir_all(path);
    if let Some(parent) = path.parent() {
        let _ = fs::remove_dir(parent);
    }
}

fn remove_ending(folder: &Path, ending: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(ending) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register(tidy: Tidy) -> u64 {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&REGISTERED).push((id, tidy));
    id
}

fn forget(id: u64) {
    lock(&REGISTERED).retain(|(other, _)| *other != id);
}

/// What is tidied when this is dropped or the program is interrupted.
pub(crate) struct Temporary {
    id: u64,
    tidy: Tidy,
}

impl Temporary {
    fn new(tidy: Tidy) -> Temporary {
        let id = register(tidy.clone());
        Temporary { id, tidy }
    }

    pub fn folder(path: &Path) -> Temporary {
        Temporary::new(Tidy::Folder(path.to_path_buf()))
    }

    pub fn file(path: &Path) -> Temporary {
        Temporary::new(Tidy::File(path.to_path_buf()))
    }

    /// A file worth keeping as soon as it has a byte: only an empty one is removed.
    pub fn growing(path: &Path) -> Temporary {
        Temporary::new(Tidy::Empty(path.to_path_buf()))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.tidy.tidy();
        forget(self.id);
    }
}

/// Files of a folder that other code creates and removes, unless the program is interrupted.
pub struct Endings(u64);

impl Endings {
    pub fn new(folder: PathBuf, ending: String) -> Endings {
        Endings(register(Tidy::Ending(folder, ending)))
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// A child process, the leader of its own group, that is ended with the group when this is dropped
/// or the program is interrupted.
pub(crate) struct Process {
    child: Arc<Mutex<Child>>,
    _ends: Temporary,
    /// Reads what it says on stderr, if that is a pipe.
    listener: Mutex<Option<JoinHandle<String>>>,
}

/// What is kept of a child's stderr: the end, where errors are.
const COMPLAINT_BYTES: usize = 64 << 10;

impl Process {
    pub fn spawn(command: &mut Command) -> io::Result<Process> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let mut child = command.spawn()?;
        let stderr = child.stderr.take();
        let listener = stderr.map(|stderr| std::thread::spawn(|| listen(stderr)));
        let child = Arc::new(Mutex::new(child));
        Ok(Process {
            _ends: Temporary::new(Tidy::Child(child.clone())),
            child,
            listener: Mutex::new(listener),
        })
    }

    /// The exit status, once there is one.
    pub fn poll(&self) -> io::Result<Option<ExitStatus>> {
        lock(&self.child).try_wait()
    }

    /// The end of what it said on stderr; waits until it has said all.
    pub fn complaint(&self) -> String {
        let listener = lock(&self.listener).take();
        let said = listener.and_then(|listener| listener.join().ok());
        said.unwrap_or_default()
    }
}

/// Reads to the end and keeps the last [`COMPLAINT_BYTES`].
fn listen(mut pipe: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        let excess = kept.len().saturating_sub(COMPLAINT_BYTES);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
