//! Models by the names of their repositories. [`locate`] is the one place that makes such a name a path.
//!
//! hf-hub brings the cache's layout, addresses, the token's file, and the agent that asks. Transfers are our own
//! ([`remote`], [`partial`]), since hf-hub's believe the server: they build paths of the etag and the commit that it
//! names, follow redirects in circles, panic at one without a location, wait for ever, add a whole file to a part of
//! it, and check no checksum.

mod address;
mod checksum;
mod error;
mod name;
mod partial;
mod pick;
mod remote;
mod settings;
mod store;

use std::path::{Path, PathBuf};

pub(crate) use error::HubError;
use error::Result;
pub(crate) use name::RepoName;
use partial::Partial;
use pick::{INDEX, Miss, Pick};
use remote::{Listing, Remote, Target};
use settings::Settings;
use store::{Held, Shelf};

use crate::progress;

/// A repository's files in the cache.
pub(crate) struct Pulled {
    /// What to open: a file, or the folder of a snapshot.
    pub(crate) path: PathBuf,
    /// The commit they belong to.
    pub(crate) commit: String,
    pub(crate) files: Vec<PulledFile>,
}

/// A file in the cache.
pub(crate) struct PulledFile {
    /// Its name in the repository.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Its size.
    pub(crate) bytes: u64,
    /// Bytes of it that came over the network this time.
    pub(crate) fetched: u64,
}

/// What a repository has.
pub(crate) struct Contents {
    pub(crate) commit: String,
    /// Names and sizes in bytes, as far as the hub says.
    pub(crate) files: Vec<(String, Option<u64>)>,
    /// Types and names that `pull` takes, for messages.
    pub(crate) models: String,
}

/// The path that a word of the command line means: itself where it exists or can only be a path, else files of a
/// repository, from the cache or from the hub.
///
/// # Errors
/// When it is neither a path nor a repository whose files can be had.
pub(crate) fn locate(word: &Path) -> Result<PathBuf> {
    if word.exists() {
        return Ok(word.to_path_buf());
    }
    // Whoever opens the path says that it does not exist.
    let Some(name) = RepoName::guess(word) else { return Ok(word.to_path_buf()) };
    let found = Hub::from_env().and_then(|hub| match hub.held(&name) {
        Some(held) => Ok(held.path),
        None => progress::ends_at_once(|| hub.pull(&name)).map(|pulled| pulled.path),
    });
    found.map_err(|error| HubError::Neither { name: word.display().to_string(), error: Box::new(error) })
}

/// A hub and its cache.
pub(crate) struct Hub(Settings);

impl Hub {
    /// Those that the environment names.
    ///
    /// # Errors
    /// When it names them wrongly.
    pub(crate) fn from_env() -> Result<Self> {
        Settings::from_env().map(Self)
    }

    fn held(&self, name: &RepoName) -> Option<Held> {
        Shelf::new(&self.0.cache, name).find(name.what.as_deref())
    }

    fn offline(&self, name: &RepoName) -> HubError {
        HubError::Offline { repo: name.to_string(), cache: self.0.cache.path().clone() }
    }

    /// What the repository has.
    pub(crate) fn contents(&self, name: &RepoName) -> Result<Contents> {
        if self.0.offline {
            return Err(self.offline(name));
        }
        let listing = Remote::new(&self.0, name)?.list()?;
        let models = pick::there(&listing.names);
        let files = listing.names.into_iter().zip(listing.sizes).collect();
        Ok(Contents { commit: listing.commit, files, models })
    }

    /// Brings what is named into the cache, as far as it is not there.
    ///
    /// # Errors
    /// When the hub cannot be reached or refuses, has nothing that fits or several things, or sends wrong bytes; when
    /// there is no room. What has arrived stays for the next pull, apart from wrong bytes.
    pub(crate) fn pull(&self, name: &RepoName) -> Result<Pulled> {
        let shelf = Shelf::new(&self.0.cache, name);
        if self.0.offline {
            let held = shelf.find(name.what.as_deref()).ok_or_else(|| self.offline(name))?;
            return pulled(&shelf, held, &[]);
        }
        let remote = Remote::new(&self.0, name)?;
        let listing = remote.list()?;
        let pull = Pull { name, shelf: &shelf, remote: &remote, listing: &listing };
        let snapshot = shelf.snapshot(&listing.commit);
        let (path, files, mut fetched) = match pull.pick()? {
            Pick::Files(files) => (snapshot.join(&files[0]), files, Vec::new()),
            Pick::Folder => {
                let (files, fetched) = pull.folder()?;
                (snapshot, files, fetched)
            }
        };
        fetched.extend(pull.bring(&files)?);
        shelf.set_commit(&listing.commit)?;
        pulled(&shelf, Held { path, commit: listing.commit, files }, &fetched)
    }

    /// Compares files of the cache with their checksums again.
    ///
    /// # Errors
    /// For the first that differs, which is then removed.
    pub(crate) fn check(&self, pulled: &Pulled) -> Result<()> {
        pulled.files.iter().try_for_each(|file| partial::check_again(&file.name, &file.path))
    }
}

/// Names of files and the bytes that came over the network for each.
type Fetched = Vec<(String, u64)>;

fn pulled(shelf: &Shelf, held: Held, fetched: &[(String, u64)]) -> Result<Pulled> {
    let snapshot = shelf.snapshot(&held.commit);
    let file = |name: String| {
        let path = snapshot.join(&name);
        let bytes = std::fs::metadata(&path).map_err(HubError::cache(&path))?.len();
        let fetched = fetched.iter().filter(|(n, _)| *n == name).map(|(_, bytes)| bytes).sum();
        Ok(PulledFile { name, path, bytes, fetched })
    };
    let files = held.files.into_iter().map(file).collect::<Result<_>>()?;
    Ok(Pulled { path: held.path, commit: held.commit, files })
}

/// One pull of a listed repository.
struct Pull<'a> {
    name: &'a RepoName,
    shelf: &'a Shelf,
    remote: &'a Remote<'a>,
    listing: &'a Listing,
}

impl Pull<'_> {
    /// What the name means in this list.
    fn pick(&self) -> Result<Pick> {
        let (names, what) = (&self.listing.names, self.name.what.as_deref());
        pick::pick(names, what).map_err(|miss| match miss {
            Miss::Nothing => {
                let asked = what
                    .map_or("GGUF file or folder of safetensors".into(), |w| format!("file or type {w:?}"));
                HubError::NoFile { repo: self.name.repo(), asked, there: pick::there(names) }
            }
            Miss::Several(found) => {
                let asked = what.map_or("the name alone".into(), |w| format!("{w:?}"));
                HubError::Several { repo: self.name.repo(), asked, found: pick::list(&found) }
            }
            Miss::Part(part) => {
                let asked = format!("part {part:?} of a split file");
                HubError::NoFile { repo: self.name.repo(), asked, there: pick::there(names) }
            }
        })
    }

    /// The files of a folder. Its index is fetched for it.
    fn folder(&self) -> Result<(Vec<String>, Fetched)> {
        let names = &self.listing.names;
        let (index, fetched) = match names.iter().any(|n| n == INDEX) {
            true => {
                let fetched = self.bring(&[INDEX.into()])?;
                (Some(self.shelf.index(&self.listing.commit)?), fetched)
            }
            false => (None, Vec::new()),
        };
        let expected = "an index of files that are there";
        let broken = |found| HubError::Listing { repo: self.name.repo(), found, expected };
        Ok((pick::folder(names, index.as_ref()).map_err(broken)?, fetched))
    }

    /// Brings files into the snapshot.
    fn bring(&self, files: &[String]) -> Result<Fetched> {
        let commit = &self.listing.commit;
        let snapshot = self.shelf.snapshot(commit);
        let missing = files.iter().filter(|f| !snapshot.join(f).exists());
        let targets =
            missing.map(|f| self.remote.target(self.listing, f)).collect::<Result<Vec<Target>>>()?;
        let mut wanted: Vec<(&Target, PathBuf)> = Vec::new();
        for target in &targets {
            let blob = self.shelf.blob(&target.checksum);
            if !partial::holds(&blob, target.size)? {
                wanted.push((target, blob));
            }
        }
        self.room(&wanted)?;
        let total = wanted.iter().fold(0u64, |sum, (target, _)| sum.saturating_add(target.size));
        let bar = progress::LateBar::new("pulling", true);
        let (mut before, mut fetched) = (0, Vec::new());
        for (target, blob) in &wanted {
            let Some(mut partial) = Partial::open(&target.name, blob, &target.checksum, target.size)? else {
                continue;
            };
            let had = partial.have();
            self.remote.fetch(self.listing, &mut partial, &mut |have| bar.set(before + have, total))?;
            partial.finish()?;
            before += target.size;
            fetched.push((target.name.clone(), target.size - had));
        }
        for target in &targets {
            self.shelf.link(commit, &target.name, &self.shelf.blob(&target.checksum))?;
        }
        Ok(fetched)
    }

    /// Whether the disk has room for what is still to come.
    fn room(&self, wanted: &[(&Target, PathBuf)]) -> Result<()> {
        let missing = |(target, blob): &(&Target, PathBuf)| target.size.saturating_sub(partial::left(blob));
        let need = wanted.iter().map(missing).fold(0, u64::saturating_add);
        let root = self.shelf.root();
        if wanted.is_empty() {
            return Ok(());
        }
        std::fs::create_dir_all(root).map_err(HubError::cache(root))?;
        match store::free(root) {
            Some(free) if free < need => Err(HubError::Room { path: root.to_path_buf(), need, free }),
            _ => Ok(()),
        }
    }
}
