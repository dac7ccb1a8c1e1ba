//! Where the control group of this process lies in the file system.
//!
//! Two texts of the kernel say it together: /proc/self/cgroup names the group in each hierarchy,
//! /proc/self/mountinfo says which folder shows which hierarchy, and from which group on (a container
//! often sees only a part). Both are parsed here by pure functions; nothing of a group is read.

use std::path::{Component, Path, PathBuf};

use crate::kernel_text::read_capped;

/// Levels that are read, own group first. No real tree is deeper.
const LEVELS_MAX: usize = 32;

/// The folders of the process's group and its ancestors, own group first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirs {
    /// The memory controller of version 1; empty where there is none.
    pub v1: Vec<PathBuf>,
    /// The one hierarchy of version 2, with or without a memory controller.
    pub v2: Vec<PathBuf>,
}

/// The folders as two texts of `proc`, normally `/proc`, give them.
pub(crate) fn find(proc: &Path) -> Option<Dirs> {
    let groups = read_capped(&proc.join("self/cgroup"))?;
    let mounts = match read_capped(&proc.join("self/mountinfo")) {
        Some(text) => Mounts::parse(&text),
        None => Mounts::usual(Path::new("/sys/fs/cgroup")),
    };
    Some(dirs(&groups, &mounts))
}

/// A folder that shows a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// The group that is seen as `point` itself.
    top: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounts {
    v1: Option<Mount>,
    v2: Option<Mount>,
}

impl Mounts {
    /// The layout that every distribution has.
    pub fn usual(root: &Path) -> Mounts {
        let mount = |point: PathBuf| {
            Some(Mount {
                point,
                top: "/".to_string(),
            })
        };
        Mounts {
            v1: mount(root.join("memory")),
            v2: mount(root.to_path_buf()),
        }
    }

    /// `35 31 0:32 /top /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory`; between the
    /// options of the mount and the lone dash are any number of further fields.
    fn parse(mountinfo: &str) -> Mounts {
        let mut mounts = Mounts::default();
        for line in mountinfo.lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let mut before = before.split(' ').skip(3);
            let (Some(top), Some(point)) = (before.next(), before.next()) else {
                continue;
            };
            let mut after = after.split(' ');
            let kind = after.next();
            let options = after.nth(1).unwrap_or("");
            let place = match kind {
                Some("cgroup2") => &mut mounts.v2,
                Some("cgroup") if options.split(',').any(|o| o == "memory") => &mut mounts.v1,
                _ => continue,
            };
            // A hierarchy mounted twice: the first one serves.
            place.get_or_insert_with(|| Mount {
                point: PathBuf::from(unescaped(point)),
                top: unescaped(top),
            });
        }
        mounts
    }
}

/// Spaces, tabs, newlines and backslashes stand as `\040` and so on. A name that is not UTF-8 when
/// decoded names a folder that does not exist.
fn unescaped(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `groups` is the text of /proc/self/cgroup: `0::/path` for version 2, `4:memory:/path` for 1.
pub(crate) fn dirs(groups: &str, mounts: &Mounts) -> Dirs {
    let mut found = Dirs::default();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if names.split(',').any(|n| n == "memory") {
            found.v1 = upwards(mounts.v1.as_ref(), path);
        } else if id == "0" && names.is_empty() {
            found.v2 = upwards(mounts.v2.as_ref(), path);
        }
    }
    found
}

/// `point/a/b`, `point/a`, `point`. `..` (a group outside our namespace) is dropped, so that nothing
/// outside the mount is read. A group that the mount does not show leaves the mount itself: inside
/// a container that is where the limits of the process are.
fn upwards(mount: Option<&Mount>, group: &str) -> Vec<PathBuf> {
    let Some(mount) = mount else {
        return Vec::new();
    };
    let below = Path::new(group)
        .strip_prefix(&mount.top)
        .unwrap_or(Path::new(""));
    let names: Vec<_> = below
        .components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    (0..=names.len())
        .rev()
        .take(LEVELS_MAX)
        .map(|n| {
            let mut dir = mount.point.clone();
            dir.extend(&names[..n]);
            dir
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(list: &[&str]) -> Vec<PathBuf> {
        list.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn both_versions_are_found_where_they_are_mounted() {
        let mountinfo = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /dev/memcg rw,relatime shared:5 master:1 - cgroup none rw,memory
41 31 0:38 / /sys/fs/cgroup/unified\\040two rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
";
        let mounts = Mounts::parse(mountinfo);
        let got = dirs("4:memory:/a/b\n3:cpuset:/x\n0::/c\n", &mounts);
        assert_eq!(
            got.v1,
            paths(&["/dev/memcg/a/b", "/dev/memcg/a", "/dev/memcg"])
        );
        assert_eq!(
            got.v2,
            paths(&["/sys/fs/cgroup/unified two/c", "/sys/fs/cgroup/unified two"])
        );
    }

    /// A container without a namespace of its own: the mount shows the tree from its group on.
    #[test]
    fn a_mount_may_begin_below_the_root() {
        let mounts = Mounts::parse("9 8 0:1 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
        let of = |groups: &str| dirs(groups, &mounts).v2;
        assert_eq!(
            of("0::/docker/abc/job\n"),
            paths(&["/sys/fs/cgroup/job", "/sys/fs/cgroup"])
        );
        assert_eq!(of("0::/docker/abcd\n"), paths(&["/sys/fs/cgroup"]));
        assert_eq!(of("0::/\n"), paths(&["/sys/fs/cgroup"]));
    }

    #[test]
    fn odd_texts_find_nothing_and_never_leave_the_mount() {
        for text in [
            "",
            " - ",
            "1 2 3 - cgroup2",
            "1 2 3 4 - cgroup2 x y",
            "a b c d e - cgroup x rw,cpu",
            "\u{0}\n - - -\n",
        ] {
            assert_eq!(Mounts::parse(text), Mounts::default(), "{text:?}");
        }
        let mounts = Mounts::usual(Path::new("/g"));
        for groups in ["", "::", "0:", "nonsense\n::\n", "1:name=systemd:/x\n"] {
            assert_eq!(dirs(groups, &mounts), Dirs::default(), "{groups:?}");
        }
        let got = dirs("0::/../../etc\n7:cpu,memory:/./a//b/\n", &mounts);
        assert_eq!(got.v2, paths(&["/g/etc", "/g"]));
        assert_eq!(
            got.v1,
            paths(&["/g/memory/a/b", "/g/memory/a", "/g/memory"])
        );
        let deep = format!("0::{}\n", "/x".repeat(1000));
        assert_eq!(dirs(&deep, &mounts).v2.len(), LEVELS_MAX);
        assert_eq!(unescaped("a\\040b\\\\134\\9"), "a b\\\\\\9");
        assert_eq!(unescaped("\\04"), "\\04");
    }
}
