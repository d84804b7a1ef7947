//! The cache that is shared with the hub's other tools: `blobs/CHECKSUM` hold content, `snapshots/COMMIT/NAME` point
//! to them, `refs/REVISION` name commits.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde_json::Value;

use super::checksum::Checksum;
use super::error::{HubError, Result};
use super::name::{RepoName, word};
use super::pick::{self, INDEX, Pick};

/// Folders within folders of a snapshot that are looked at.
const DEEPEST: usize = 8;

/// The largest index of a folder, in bytes.
const MOST_INDEX: u64 = 64 << 20;

/// A repository in the cache.
pub(super) struct Shelf {
    root: PathBuf,
    revision: String,
    repo: CacheRepo,
}

/// What a name means, in the cache.
pub(super) struct Held {
    /// What to open.
    pub(super) path: PathBuf,
    /// The commit it belongs to.
    pub(super) commit: String,
    /// Files, by their names in the repository.
    pub(super) files: Vec<String>,
}

impl Shelf {
    pub(super) fn new(cache: &Cache, name: &RepoName) -> Self {
        let repo = Repo::with_revision(name.id.clone(), RepoType::Model, name.revision.clone());
        let root = cache.path().join(repo.folder_name());
        Self { root, revision: name.revision.clone(), repo: cache.repo(repo) }
    }

    /// The folder that holds it.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The commit that the revision meant when it was last pulled.
    fn commit(&self) -> Option<String> {
        let named = fs::read_to_string(self.root.join("refs").join(&self.revision));
        let commit = named.map_or_else(|_| self.revision.clone(), |text| text.trim().to_owned());
        (word(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Says that the revision is this commit.
    pub(super) fn set_commit(&self, commit: &str) -> Result<()> {
        if commit == self.revision {
            return Ok(());
        }
        self.repo.create_ref(commit).map_err(HubError::cache(&self.root.join("refs")))
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    pub(super) fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.repo.blob_path(checksum.digits())
    }

    /// Names of the files of a snapshot that are whole.
    fn names(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        walk(&self.snapshot(commit), "", 0, &mut names);
        names
    }

    /// What the name means, where all of it is here.
    pub(super) fn find(&self, what: Option<&str>) -> Option<Held> {
        let commit = self.commit()?;
        let (names, snapshot) = (self.names(&commit), self.snapshot(&commit));
        let (path, files) = match pick::pick(&names, what).ok()? {
            Pick::Files(files) => (snapshot.join(files.first()?), files),
            Pick::Folder => {
                let index = names.iter().any(|n| n == INDEX).then(|| self.index(&commit)).transpose().ok()?;
                let files = pick::folder(&names, index.as_ref()).ok()?;
                (snapshot, files)
            }
        };
        Some(Held { path, commit, files })
    }

    /// The index of a folder's shards.
    pub(super) fn index(&self, commit: &str) -> Result<Value> {
        let path = self.snapshot(commit).join(INDEX);
        let size = fs::metadata(&path).map_err(HubError::cache(&path))?.len();
        let broken = |found: String| HubError::Answer {
            file: path.display().to_string(),
            found,
            expected: "the index of a safetensors folder".into(),
        };
        if size > MOST_INDEX {
            return Err(broken(format!("{size} bytes")));
        }
        let bytes = fs::read(&path).map_err(HubError::cache(&path))?;
        serde_json::from_slice(&bytes).map_err(|e| broken(e.to_string()))
    }

    /// Makes a blob the file `name` of a commit.
    pub(super) fn link(&self, commit: &str, name: &str, blob: &Path) -> Result<PathBuf> {
        let pointer = self.snapshot(commit).join(name);
        let folder = pointer.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        if fs::symlink_metadata(&pointer).is_ok() {
            fs::remove_file(&pointer).map_err(HubError::cache(&pointer))?;
        }
        // From snapshots/COMMIT/ up to the root, and one more for every folder in the name.
        let up = "../".repeat(2 + name.matches('/').count());
        let blob_name = blob.file_name().unwrap_or_default();
        let target = PathBuf::from(up).join("blobs").join(blob_name);
        match symlink(&target, &pointer) {
            // Another program was faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && pointer.exists() => {}
            // Some file systems have no links of one kind or of any.
            Err(_) => fs::hard_link(blob, &pointer)
                .or_else(|_| fs::rename(blob, &pointer))
                .map_err(HubError::cache(&pointer))?,
            Ok(()) => {}
        }
        Ok(pointer)
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

fn walk(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        match fs::metadata(entry.path()) {
            Ok(meta) if meta.is_file() => names.push(name),
            Ok(meta) if meta.is_dir() && depth < DEEPEST => {
                walk(&entry.path(), &format!("{name}/"), depth + 1, names);
            }
            // A link to a blob that is not there: the file was never whole.
            _ => {}
        }
    }
}

/// Bytes free where `path` lies, for this user. `None` where nobody can tell.
#[cfg(unix)]
pub(super) fn free(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Bytes free: unknown here.
#[cfg(not(unix))]
pub(super) fn free(_path: &Path) -> Option<u64> {
    None
}
