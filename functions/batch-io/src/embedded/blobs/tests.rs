//! What holds of blobs as files: scratch files, hostile names, errors of the operating system.

use std::sync::Arc;

use batch_core::time::UnixMs;

use super::*;
use crate::platform::{system_clock, system_randomness};

fn disk() -> (tempfile::TempDir, Disk) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), system_clock(), system_randomness()).unwrap();
    (dir, disk)
}

/// Lists the blobs and folders below the root, but not our own.
fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in disk::list(&folder).unwrap() {
            let path = entry.path();
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            if name.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            }
            found.push(name);
        }
    }
    found.sort();
    found
}

#[test]
fn hostile_paths_are_refused() {
    let (dir, disk) = disk();
    let outside = dir.path().parent().unwrap().join("outside");
    let hostile = [
        "",
        "/",
        "/etc/passwd",
        "a//b",
        "../outside",
        "a/../../outside",
        "a/./b",
        ".scratch/x",
        "a/ü",
        "a/b\0",
        "a\\b",
        "a/",
    ];
    for path in hostile {
        let outcome = put(&disk, path, b"x", Named::Replacing);
        let Err(Failure::Io(error)) = outcome else {
            panic!("{path:?} gave {outcome:?}")
        };
        assert_eq!(kind_of(&error), IoKind::TooLarge, "{path:?}");
    }
    assert!(!outside.exists());
    assert!(tree(dir.path()).is_empty());
}

#[test]
fn hostile_multipart_ids_name_nothing() {
    let (_dir, disk) = disk();
    for id in [
        "",
        "..",
        "../../x",
        "0123456789abcdef0123456789abcde/",
        "0123456789abcdef0123456789abcdef",
    ] {
        let id = MultipartId(id.to_owned());
        let Err(Failure::Io(error)) = multipart::put(&disk, "files/a/b", &id, 1, b"x") else {
            panic!("{id:?}")
        };
        assert_eq!(kind_of(&error), IoKind::NotFound);
        multipart::abort(&disk, "files/a/b", &id).unwrap();
    }
}

#[test]
fn a_multipart_serves_its_own_key_alone() {
    let (_dir, disk) = disk();
    let id = multipart::begin(&disk, "files/a/b").unwrap();
    let Err(Failure::Io(error)) = multipart::put(&disk, "files/a/c", &id, 1, b"x") else {
        panic!("{id:?}")
    };
    assert_eq!(kind_of(&error), IoKind::NotFound);
    multipart::abort(&disk, "files/a/c", &id).unwrap();
    multipart::put(&disk, "files/a/b", &id, 1, b"x").unwrap();
}

#[test]
fn multiparts_that_were_given_up_are_removed_after_a_week() {
    let (dir, disk) = disk();
    multipart::begin(&disk, "files/a/b").unwrap();
    let count = || disk::list(&dir.path().join(".multipart")).unwrap().len();
    let in_days = |days: i64| system_clock()().plus_ms(days * 24 * 60 * 60 * 1000);
    multipart::remove_old(dir.path(), in_days(6)).unwrap();
    assert_eq!(count(), 1);
    multipart::remove_old(dir.path(), in_days(8)).unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn emptied_folders_vanish_with_their_last_blob() {
    let (dir, disk) = disk();
    for path in ["shards/a/b/1", "shards/a/c/1", "shards/a/c/2"] {
        put(&disk, path, b"x", Named::Replacing).unwrap();
    }
    disk.delete("shards/a/b/1").unwrap();
    assert_eq!(
        tree(dir.path()),
        [
            "shards",
            "shards/a",
            "shards/a/c",
            "shards/a/c/1",
            "shards/a/c/2"
        ]
    );
    assert_eq!(disk.delete_prefix("shards/a/c/2").unwrap(), 1);
    put(&disk, "files/a/1", b"x", Named::Replacing).unwrap();
    assert_eq!(disk.delete_prefix("shards/a/c/").unwrap(), 1);
    assert_eq!(tree(dir.path()), ["files", "files/a", "files/a/1"]);
}

#[test]
fn blobs_survive_a_collector_that_empties_their_folder() {
    let (_dir, disk) = disk();
    let disk = Arc::new(disk);
    let collector = std::thread::spawn({
        let disk = Arc::clone(&disk);
        move || {
            (0..200)
                .map(|_| disk.delete_prefix("shards/a/gone/").unwrap())
                .sum::<u64>()
        }
    });
    for n in 0..100 {
        put(&disk, &format!("shards/a/gone/{n}"), b"x", Named::Replacing).unwrap();
    }
    let mut removed = collector.join().unwrap();
    removed += disk.delete_prefix("shards/a/gone/").unwrap();
    assert_eq!(removed, 100);
}

#[test]
fn scratch_files_vanish_when_they_are_dropped() {
    let (dir, disk) = disk();
    drop(disk.scratch().unwrap());
    let scratch = disk.scratch().unwrap();
    disk.publish(scratch, "files/a/b", Named::IfAbsent).unwrap();
    let folder = disk::list(&dir.path().join(".scratch"))
        .unwrap()
        .remove(0)
        .path();
    let left: Vec<_> = disk::list(&folder)
        .unwrap()
        .iter()
        .map(std::fs::DirEntry::file_name)
        .collect();
    assert_eq!(left, ["alive"]);
}

#[test]
fn the_tag_is_that_of_a_copy_that_keeps_times() {
    let (dir, disk) = disk();
    let meta = put(&disk, "files/a/b", b"xyz", Named::Replacing).unwrap();
    let (from, to) = (dir.path().join("files/a/b"), dir.path().join("files/a/c"));
    std::fs::copy(&from, &to).unwrap();
    let times =
        std::fs::FileTimes::new().set_modified(from.metadata().unwrap().modified().unwrap());
    File::options()
        .write(true)
        .open(&to)
        .unwrap()
        .set_times(times)
        .unwrap();
    assert_eq!(disk.open_blob("files/a/c").unwrap().1, meta);
}

#[test]
fn a_clock_before_1970_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), Arc::new(|| UnixMs(-5)), system_randomness()).unwrap();
    assert_eq!(
        put(&disk, "files/a/b", b"x", Named::Replacing)
            .unwrap()
            .bytes,
        1
    );
}

#[test]
fn a_full_disk_is_denied() {
    let mut full = File::options().write(true).open("/dev/full").unwrap();
    let error = full.write_all(b"x").unwrap_err();
    let error = Failure::Io(error).of("put blob", "files/a/b");
    assert_eq!(error.kind, IoKind::Denied);
    assert_eq!(
        error.source.unwrap().to_string(),
        "the disk that holds the data directory is full"
    );
}

#[test]
fn errors_of_the_system_say_what_to_do() {
    use io::ErrorKind as Kind;
    let table = [
        (Kind::NotFound, IoKind::NotFound),
        (Kind::NotADirectory, IoKind::NotFound),
        (Kind::AlreadyExists, IoKind::Conflict),
        (Kind::StorageFull, IoKind::Denied),
        (Kind::QuotaExceeded, IoKind::Denied),
        (Kind::PermissionDenied, IoKind::Denied),
        (Kind::ReadOnlyFilesystem, IoKind::Denied),
        (Kind::UnexpectedEof, IoKind::Corrupt),
        (Kind::InvalidFilename, IoKind::TooLarge),
        (Kind::Interrupted, IoKind::Busy),
        (Kind::OutOfMemory, IoKind::Busy),
    ];
    for (error, expected) in table {
        assert_eq!(kind_of(&error.into()), expected, "{error:?}");
    }
    let open_files = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
    assert_eq!(kind_of(&open_files), IoKind::Busy);
}
