//! A blob on its way into the cache. It gets its name only when it is whole and its checksum is right.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::checksum::{Checksum, Sum};
use super::error::{HubError, Result};

/// Bytes read at once.
pub(super) const CHUNK: usize = 256 << 10;

/// `blobs/CHECKSUM.part`, which hf-hub goes on from as well, under hf-hub's lock `blobs/CHECKSUM.lock`.
pub(super) struct Partial {
    /// The file's name in the repository.
    name: String,
    blob: PathBuf,
    path: PathBuf,
    file: File,
    /// Released when it is closed.
    _lock: File,
    checksum: Checksum,
    sum: Sum,
    size: u64,
    have: u64,
}

impl Partial {
    /// Takes up what an earlier attempt left, or starts. Waits while another program fetches the same blob; `None`
    /// when that one brought it.
    ///
    /// # Errors
    /// When the cache cannot be written.
    pub(super) fn open(name: &str, blob: &Path, checksum: &Checksum, size: u64) -> Result<Option<Self>> {
        let folder = blob.parent().unwrap_or(blob);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let (path, lock_path) = (blob.with_extension("part"), blob.with_extension("lock"));
        let lock = File::create(&lock_path).map_err(HubError::cache(&lock_path))?;
        lock.lock().map_err(HubError::cache(&lock_path))?;
        if holds(blob, size)? {
            return Ok(None);
        }
        let mut open = OpenOptions::new();
        let file = open
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::cache(&path))?;
        let sum = checksum.start(size);
        let (name, blob, checksum) = (name.to_owned(), blob.to_path_buf(), checksum.clone());
        let mut partial = Self { name, blob, path, file, _lock: lock, checksum, sum, size, have: 0 };
        partial.take_up()?;
        Ok(Some(partial))
    }

    /// Adds what is there to the sum.
    fn take_up(&mut self) -> Result<()> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = self.file.read(&mut chunk).map_err(HubError::cache(&self.path))?;
            if read == 0 {
                return Ok(());
            }
            self.have += read as u64;
            if self.have > self.size {
                return self.restart();
            }
            self.sum.add(&chunk[..read]);
        }
    }

    /// Forgets what is there.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(HubError::cache(&self.path))?;
        (self.have, self.sum) = (0, self.checksum.start(self.size));
        Ok(())
    }

    /// Bytes that are there.
    pub(super) fn have(&self) -> u64 {
        self.have
    }

    /// Bytes of the whole.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The file's name in the repository.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds bytes, at most as many as are missing.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(HubError::cache(&self.path))?;
        self.sum.add(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Gives the blob its name.
    ///
    /// # Errors
    /// When the checksum is wrong; nothing of the file is left then.
    pub(super) fn finish(self) -> Result<()> {
        check(&self.name, &self.checksum, &self.sum).inspect_err(|_| {
            // The error at hand says more than that of a file that cannot be removed.
            let _ = fs::remove_file(&self.path);
        })?;
        self.file.sync_data().map_err(HubError::cache(&self.path))?;
        fs::rename(&self.path, &self.blob).map_err(HubError::cache(&self.blob))
    }
}

/// Whether a blob is there with its size. One of another size is broken and removed.
pub(super) fn holds(blob: &Path, size: u64) -> Result<bool> {
    match fs::metadata(blob) {
        Ok(meta) if meta.len() == size => Ok(true),
        Ok(_) => fs::remove_file(blob).map(|()| false).map_err(HubError::cache(blob)),
        Err(_) => Ok(false),
    }
}

/// Bytes that an earlier attempt left.
pub(super) fn left(blob: &Path) -> u64 {
    fs::metadata(blob.with_extension("part")).map_or(0, |meta| meta.len())
}

/// Reads the file of a snapshot again and compares it with its checksum, which is the name of its blob.
///
/// # Errors
/// When it differs; it is then removed.
pub(super) fn check_again(name: &str, pointer: &Path) -> Result<()> {
    let blob = fs::canonicalize(pointer).map_err(HubError::cache(pointer))?;
    let checksum = Checksum::of_blob(&blob).ok_or_else(|| HubError::Answer {
        file: pointer.display().to_string(),
        found: "a file that is no link to a blob of the cache".into(),
        expected: "a link to a blob that is named by its checksum".into(),
    })?;
    let mut file = File::open(&blob).map_err(HubError::cache(&blob))?;
    let size = file.metadata().map_err(HubError::cache(&blob))?.len();
    let (mut sum, mut chunk) = (checksum.start(size), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk).map_err(HubError::cache(&blob))? {
            0 => break,
            read => sum.add(&chunk[..read]),
        }
    }
    check(name, &checksum, &sum).inspect_err(|_| {
        let _ = fs::remove_file(pointer).and_then(|()| fs::remove_file(&blob));
    })
}

fn check(name: &str, checksum: &Checksum, sum: &Sum) -> Result<()> {
    let (kind, found, expected) = (checksum.kind(), sum.digits(), checksum.digits().to_owned());
    if found == expected {
        return Ok(());
    }
    Err(HubError::Checksum { file: name.into(), kind, found, expected })
}
