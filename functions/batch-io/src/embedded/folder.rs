//! The data directory itself: its version, and the lock under which processes open it one by one. Knows
//! nothing of what the ports keep in it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::OpenError;

/// The version of the layout that this program writes.
const VERSION: u32 = 1;

/// A data directory that no other process opens while this lives.
#[derive(Debug)]
pub(super) struct Folder {
    /// The directory, without links.
    pub(super) dir: PathBuf,
    /// Holds the lock until it is closed.
    _lock: File,
}

impl Folder {
    /// Makes the directory if need be, locks it against other openings, and checks its version.
    pub(super) fn prepare(dir: &Path) -> Result<Self, OpenError> {
        fs::create_dir_all(dir).map_err(io_error("make the data directory", dir))?;
        let dir = dir
            .canonicalize()
            .map_err(io_error("find the data directory", dir))?;
        refuse_network(&dir)?;
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(io_error("make the lock file", &path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|errno| io_error("lock", &path)(errno.into()))?;
        check_version(&dir)?;
        Ok(Self { dir, _lock: lock })
    }
}

/// Returns a closure that says what was being done when the operating system refused.
pub(super) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io {
        doing,
        path,
        source,
    }
}

fn check_version(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join("version");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return write_version(dir, &path),
        Err(source) => return Err(io_error("read the version file", &path)(source)),
    };
    match text.trim().parse::<u32>() {
        Ok(found) if found > VERSION => Err(OpenError::NewerVersion {
            dir: dir.to_owned(),
            found,
            known: VERSION,
        }),
        Ok(_) => Ok(()),
        Err(_) => Err(OpenError::UnreadableVersion {
            path,
            text: text.trim().chars().take(40).collect(),
        }),
    }
}

/// Written beside and renamed, so that a crash leaves no empty version file.
fn write_version(dir: &Path, path: &Path) -> Result<(), OpenError> {
    let write = || {
        let beside = dir.join("version.new");
        let mut file = File::create(&beside)?;
        writeln!(file, "{VERSION}")?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(io_error("write the version file", path))
}

fn refuse_network(dir: &Path) -> Result<(), OpenError> {
    let magic = rustix::fs::statfs(dir)
        .map_err(|errno| io_error("look at the file system of", dir)(errno.into()))?;
    let device = fs::metadata(dir).map_err(io_error("look at", dir))?.dev();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match network_kind(low_word(magic.f_type), device, &mounts) {
        Some(kind) => Err(OpenError::NetworkFileSystem {
            dir: dir.to_owned(),
            kind,
        }),
        None => Ok(()),
    }
}

/// File system magics have 32 bits, whatever the width of the field that carries them.
fn low_word(magic: impl TryInto<i128>) -> u32 {
    let wide: i128 = magic.try_into().unwrap_or_default();
    u32::try_from(wide & 0xffff_ffff).unwrap_or_default()
}

/// Names the network file system by its magic, or a FUSE one by the mount of its device.
///
/// Source: statfs(2), proc_pid_mountinfo(5).
fn network_kind(magic: u32, device: u64, mounts: &str) -> Option<String> {
    let kind = match magic {
        0x6969 => "nfs",
        0x517b => "smb",
        0xfe53_4d42 => "smb2",
        0xff53_4d42 => "cifs",
        0x564c => "ncp",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x00c3_6400 => "ceph",
        0x0102_1997 => "9p",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0x6573_5546 => return remote_fuse(device, mounts),
        _ => return None,
    };
    Some(kind.to_owned())
}

/// Names of FUSE file systems whose files other machines change.
const REMOTE_FUSE: [&str; 11] = [
    "fuse.sshfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.rclone",
    "fuse.glusterfs",
    "fuse.ceph-fuse",
    "fuse.mount-s3",
    "fuse.goofys",
    "fuse.blobfuse2",
    "fuse.juicefs",
    "fuse.davfs",
];

fn remote_fuse(device: u64, mounts: &str) -> Option<String> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let kind = file_system.split(' ').next()?;
        let here = mount.split(' ').nth(2)? == number;
        (here && REMOTE_FUSE.contains(&kind)).then(|| kind.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "36 35 8:1 / / rw,noatime master:1 - ext4 /dev/sda1 rw\n\
        91 36 0:52 / /mnt/far rw - fuse.sshfs far:/home rw\n\
        92 36 0:53 / /mnt/usb rw - fuse.ntfs-3g /dev/sdb1 rw\n";

    fn check(magic: u32, device: (u32, u32), expected: Option<&str>) {
        let device = rustix::fs::makedev(device.0, device.1);
        assert_eq!(network_kind(magic, device, MOUNTS).as_deref(), expected);
    }

    #[test]
    fn network_file_systems_are_named_by_their_magic() {
        check(0x6969, (0, 40), Some("nfs"));
        check(0xff53_4d42, (0, 40), Some("cifs"));
    }

    #[test]
    fn local_file_systems_are_accepted() {
        check(0xef53, (8, 1), None);
        check(0x0102_1994, (0, 2), None);
    }

    #[test]
    fn fuse_file_systems_are_told_apart_by_their_mount() {
        check(0x6573_5546, (0, 52), Some("fuse.sshfs"));
        check(0x6573_5546, (0, 53), None);
        check(0x6573_5546, (0, 99), None);
    }

    #[test]
    fn a_magic_keeps_its_32_bits_when_the_field_is_signed() {
        assert_eq!(
            low_word(i64::from(0xff53_4d42_u32.cast_signed())),
            0xff53_4d42
        );
    }
}
