//! What can go wrong between a name and files in the cache.

use std::io;
use std::path::PathBuf;

/// What ends a pull.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// A name that cannot be a repository's.
    #[error("{found:?} names no repository: {why}, expected OWNER/NAME[@REVISION][:TYPE or :FILE]")]
    Name {
        /// The name.
        found: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A path that does not exist and a repository that cannot be had.
    #[error("{name}: no such file or folder; as a repository: {error}")]
    Neither {
        /// What was named.
        name: String,
        /// Why it cannot be had.
        error: Box<HubError>,
    },
    /// A variable of the environment that cannot be used.
    #[error("{variable}: found {found:?}, expected {expected}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// Its value.
        found: String,
        /// What would fit.
        expected: &'static str,
    },
    /// Nobody answers.
    #[error("cannot reach {host}: {error}")]
    Network {
        /// Who was asked.
        host: String,
        /// Why.
        error: String,
    },
    /// The network is switched off, and the cache does not hold what is asked for.
    #[error("HF_HUB_OFFLINE is set, and the cache {cache} does not hold {repo}")]
    Offline {
        /// What was asked for.
        repo: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The repository is there for others.
    #[error("{repo}: {endpoint} answers {status}: {why}; {token}")]
    Denied {
        /// The repository.
        repo: String,
        /// Who was asked.
        endpoint: String,
        /// The answer.
        status: u16,
        /// What it means.
        why: String,
        /// What stands in the way or would help.
        token: &'static str,
    },
    /// No such repository or revision.
    #[error("{endpoint} has no repository {repo} with a revision {revision:?} (404)")]
    NoRepo {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// Who was asked.
        endpoint: String,
    },
    /// An answer that ends the attempt.
    #[error("{what}: the server answers {status}")]
    Status {
        /// What was asked for.
        what: String,
        /// The answer.
        status: u16,
    },
    /// The list of files is not one.
    #[error("{repo}: broken list of files: found {found}, expected {expected}")]
    Listing {
        /// The repository.
        repo: String,
        /// What is wrong with it.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Nothing fits what was asked for.
    #[error("{repo}: found no {asked}; it has {there}")]
    NoFile {
        /// The repository.
        repo: String,
        /// What was asked for.
        asked: String,
        /// What there is.
        there: String,
    },
    /// Too much fits what was asked for.
    #[error("{repo}: found several that fit {asked}: {found}; name one as {repo}:TYPE or {repo}:FILE")]
    Several {
        /// The repository.
        repo: String,
        /// What was asked for.
        asked: String,
        /// What fits.
        found: String,
    },
    /// An answer that does not say what it must.
    #[error("{file}: found {found}, expected {expected}")]
    Answer {
        /// The file.
        file: String,
        /// What the server said.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Bytes that are not those of the file.
    #[error(
        "{file}: found {kind} {found}, expected {expected}; the file was removed, the next pull fetches it anew"
    )]
    Checksum {
        /// The file.
        file: String,
        /// Which sum.
        kind: &'static str,
        /// That of the bytes.
        found: String,
        /// That of the file.
        expected: String,
    },
    /// The disk is too full.
    #[error("{path}: no room: needs {need} bytes, {free} are free")]
    Room {
        /// The cache.
        path: PathBuf,
        /// Bytes to be written.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// The connection broke, and again after trying again.
    #[error(
        "{file}: the connection broke after {have} of {size} bytes ({error}); the next pull goes on from there"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes kept.
        have: u64,
        /// Bytes of the whole.
        size: u64,
        /// Why.
        error: String,
    },
    /// The cache cannot be read or written.
    #[error("{path}: {error}")]
    Cache {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl HubError {
    /// Wraps an error of the cache.
    pub(super) fn cache(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::Cache { path, error }
    }
}

/// Result of an operation on the hub or its cache.
pub(crate) type Result<T, E = HubError> = std::result::Result<T, E>;
