//! Requests to a hub. They are hf-hub's, with its agent, token and addresses; what the answers say is checked here.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Repo, RepoType};
use serde::Deserialize;
use serde_json::Value;
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::checksum::Checksum;
use super::error::{HubError, Result};
use super::name::{RepoName, file_name, word};
use super::partial::{CHUNK, Partial};
use super::settings::Settings;
use super::{address, pick};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(30);
/// How long an answer or its next bytes may take.
const SILENCE: Duration = Duration::from_secs(60);
/// Redirects that are followed.
const REDIRECTS: usize = 10;
/// The longest list of files, in bytes.
const MOST_LISTING: u64 = 64 << 20;
/// Attempts in a row that may bring nothing before a download is given up.
const ATTEMPTS: u32 = 3;
/// The wait before the second attempt; each further one doubles it.
const WAIT: Duration = Duration::from_millis(200);

/// A repository at a hub.
pub(super) struct Remote<'a> {
    name: &'a RepoName,
    endpoint: &'a str,
    has_token: bool,
    api: Api,
}

/// What a repository holds at a commit.
pub(super) struct Listing {
    pub(super) commit: String,
    /// Names, each once, in order.
    pub(super) names: Vec<String>,
    /// Sizes in bytes, as far as the hub says.
    pub(super) sizes: Vec<Option<u64>>,
}

/// What a hub says of a file before it is fetched.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) checksum: Checksum,
    pub(super) size: u64,
}

#[derive(Deserialize)]
struct WireListing {
    sha: String,
    siblings: Vec<WireFile>,
}

#[derive(Deserialize)]
struct WireFile {
    rfilename: String,
    #[serde(default)]
    size: Value,
}

impl<'a> Remote<'a> {
    pub(super) fn new(settings: &'a Settings, name: &'a RepoName) -> Result<Self> {
        let api = ApiBuilder::from_cache(settings.cache.clone())
            .with_endpoint(settings.endpoint.clone())
            .with_token(settings.token.clone())
            .with_user_agent("forerun", env!("CARGO_PKG_VERSION"))
            .with_progress(false)
            .build()
            .map_err(|e| HubError::Network { host: settings.endpoint.clone(), error: e.to_string() })?;
        Ok(Self { name, endpoint: &settings.endpoint, has_token: settings.token.is_some(), api })
    }

    fn at(&self, revision: &str) -> ApiRepo {
        self.api.repo(Repo::with_revision(self.name.id.clone(), RepoType::Model, revision.into()))
    }

    /// What the repository holds.
    ///
    /// # Errors
    /// When the hub cannot be reached or refuses, or answers with anything but a list of plain names.
    pub(super) fn list(&self) -> Result<Listing> {
        let repo = self.at(&self.name.revision);
        // hf-hub knows the address; the sizes that it leaves out come with `blobs`.
        let address =
            repo.info_request().uri_ref().map(|uri| format!("{uri}?blobs=true")).unwrap_or_default();
        let mut answer = self.follow(&address, None)?;
        if !answer.status().is_success() {
            return Err(self.refused(&answer, None));
        }
        let broken = |found: String, expected| HubError::Listing { repo: self.name.repo(), found, expected };
        let wire = answer.body_mut().with_config().limit(MOST_LISTING).read_json::<WireListing>();
        let wire = wire.map_err(|e| broken(e.to_string(), "JSON with `sha` and `siblings`"))?;
        if !word(&wire.sha) {
            return Err(broken(format!("{:?} for `sha`", short(&wire.sha)), "a commit"));
        }
        let (mut seen, mut names, mut sizes) = (BTreeSet::new(), Vec::new(), Vec::new());
        for file in wire.siblings {
            if !file_name(&file.rfilename) {
                let found = format!("the name {:?}", short(&file.rfilename));
                return Err(broken(found, "names of files within the repository"));
            }
            if seen.insert(file.rfilename.clone()) {
                names.push(file.rfilename);
                sizes.push(file.size.as_u64());
            }
        }
        Ok(Listing { commit: wire.sha, names, sizes })
    }

    /// Checksum and size of a file. The hub says them where it redirects to the content, which is not read.
    pub(super) fn target(&self, listing: &Listing, name: &str) -> Result<Target> {
        let mut address = self.address(&listing.commit, name);
        let (mut etag, mut size) = (None, None);
        for _ in 0..REDIRECTS {
            let answer = self.request(&address, Some("bytes=0-0"))?;
            let next = address::redirect(&answer, &address);
            if next.is_none() && !is_content(&answer) {
                return Err(self.refused(&answer, Some((name, listing))));
            }
            let elsewhere = next.as_ref().is_none_or(|n| address::origin(n) != address::origin(&address));
            // Where the content lies, an etag may be any name; at the hub it is a checksum.
            let plain = if elsewhere { header(&answer, "etag") } else { None };
            etag = etag.or_else(|| header(&answer, "x-linked-etag").or(plain).map(str::to_owned));
            size = size.or_else(|| size_of(&answer));
            match (etag.as_deref(), size, next) {
                (Some(etag), Some(size), _) => {
                    let wrong =
                        |found: String| self.wrong(name, found, "an etag that is a sha256 or Git's sha1");
                    let checksum =
                        Checksum::of_etag(etag).ok_or_else(|| wrong(format!("etag {:?}", short(etag))))?;
                    return Ok(Target { name: name.into(), checksum, size });
                }
                (_, _, Some(next)) => address = next,
                (None, _, None) => return Err(self.wrong(name, "no etag".into(), "a checksum")),
                (_, None, None) => return Err(self.wrong(name, "no size".into(), "the file's size")),
            }
        }
        Err(self.circles(&address))
    }

    /// Fetches what is missing of a file; `progress` hears how many bytes are there. A connection that breaks is
    /// taken up again where it broke.
    pub(super) fn fetch(
        &self,
        listing: &Listing,
        partial: &mut Partial,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let address = self.address(&listing.commit, partial.name());
        let (mut fruitless, mut broke) = (0, String::new());
        while partial.have() < partial.size() {
            if fruitless == ATTEMPTS {
                let (file, have, size) = (partial.name().to_owned(), partial.have(), partial.size());
                return Err(HubError::Cut { file, have, size, error: broke });
            }
            if fruitless > 0 {
                std::thread::sleep(WAIT * 2u32.pow(fruitless - 1));
            }
            let before = partial.have();
            match self.read(&address, listing, partial, progress)? {
                None => break,
                Some(error) => broke = error,
            }
            // A peer that gives a byte at a time must not keep us for ever.
            fruitless = if partial.have() >= before + CHUNK as u64 { 1 } else { fruitless + 1 };
        }
        Ok(())
    }

    /// One request for what is missing. `Some` says why it broke off.
    fn read(
        &self,
        address: &str,
        listing: &Listing,
        partial: &mut Partial,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<String>> {
        let range = (partial.have() > 0).then(|| format!("bytes={}-", partial.have()));
        let answer = match self.follow(address, range.as_deref()) {
            Ok(answer) => answer,
            Err(HubError::Network { error, .. }) => return Ok(Some(error)),
            Err(error) => return Err(error),
        };
        let status = answer.status();
        match status {
            StatusCode::PARTIAL_CONTENT if range.is_some() => self.right_range(&answer, partial)?,
            StatusCode::OK => partial.restart()?,
            StatusCode::RANGE_NOT_SATISFIABLE if range.is_some() => {
                partial.restart()?;
                return Ok(Some("the server does not have the rest".into()));
            }
            _ if status.is_server_error() => {
                return Ok(Some(format!("the server answers {}", status.as_u16())));
            }
            _ => return Err(self.refused(&answer, Some((partial.name(), listing)))),
        }
        let mut body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            progress(partial.have());
            let read = match body.read(&mut chunk) {
                Ok(0) if partial.have() == partial.size() => return Ok(None),
                Ok(0) => return Ok(Some("it ended early".into())),
                Ok(read) => read,
                Err(error) => return Ok(Some(error.to_string())),
            };
            if read as u64 > partial.size() - partial.have() {
                let (found, expected) = (format!("more than {} bytes", partial.size()), "the file's size");
                let error = self.wrong(partial.name(), found, expected);
                partial.restart()?;
                return Err(error);
            }
            partial.add(&chunk[..read])?;
        }
    }

    /// Whether a part of a file is the part that was asked for.
    fn right_range(&self, answer: &Response<Body>, partial: &Partial) -> Result<()> {
        let found = header(answer, "content-range").unwrap_or("none");
        let numbers = found.strip_prefix("bytes ").and_then(|r| r.split_once('-'));
        let starts = numbers.is_some_and(|(start, _)| start.parse() == Ok(partial.have()));
        if starts && size_of(answer).is_none_or(|size| size == partial.size()) {
            return Ok(());
        }
        let expected = format!("bytes {}-{}/{}", partial.have(), partial.size() - 1, partial.size());
        let found = format!("the range {:?}", short(found));
        Err(HubError::Answer { file: format!("{}: {}", self.name.repo(), partial.name()), found, expected })
    }

    fn address(&self, commit: &str, name: &str) -> String {
        self.at(commit).url(&address::escape(name))
    }

    /// Follows redirects to their end.
    fn follow(&self, address: &str, range: Option<&str>) -> Result<Response<Body>> {
        let mut address = address.to_owned();
        for _ in 0..REDIRECTS {
            let answer = self.request(&address, range)?;
            match address::redirect(&answer, &address) {
                Some(next) => address = next,
                None => return Ok(answer),
            }
        }
        Err(self.circles(&address))
    }

    /// One request; the token goes to the hub alone.
    fn request(&self, address: &str, range: Option<&str>) -> Result<Response<Body>> {
        // Compressed bytes would have another length and another checksum.
        let mut request =
            self.at(&self.name.revision).info_request().uri(address).header("Accept-Encoding", "identity");
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        if address::origin(address) != address::origin(self.endpoint)
            && let Some(headers) = request.headers_mut()
        {
            headers.remove("Authorization");
        }
        let request = request.config().max_redirects(0).http_status_as_error(false);
        let request = request.timeout_connect(Some(CONNECT)).timeout_recv_response(Some(SILENCE));
        request
            .timeout_per_read(Some(SILENCE))
            .build()
            .call()
            .map_err(|e| HubError::Network { host: short(address::origin(address)), error: e.to_string() })
    }

    fn circles(&self, address: &str) -> HubError {
        let (file, found) =
            (self.name.repo(), format!("more than {REDIRECTS} redirects, to {:?}", short(address)));
        HubError::Answer { file, found, expected: "an answer".into() }
    }

    fn wrong(&self, name: &str, found: String, expected: &str) -> HubError {
        HubError::Answer { file: format!("{}: {name}", self.name.repo()), found, expected: expected.into() }
    }

    /// What an answer that is no success means, for the repository or one of its files.
    fn refused(&self, answer: &Response<Body>, file: Option<(&str, &Listing)>) -> HubError {
        let (status, repo) = (answer.status().as_u16(), self.name.repo());
        let endpoint = self.endpoint.to_owned();
        let code = header(answer, "x-error-code").unwrap_or_default();
        match (status, file) {
            (401 | 403, _) => {
                let why = match code {
                    "GatedRepo" => format!("it is gated; ask for access at {endpoint}/{}", self.name.id),
                    _ => "it is private, gated or not there".into(),
                };
                let token = match self.has_token {
                    true => "the token of HF_TOKEN or `hf auth login` does not open it",
                    false => "no token was given: set HF_TOKEN",
                };
                HubError::Denied { repo, endpoint, status, why, token }
            }
            (404, None) => HubError::NoRepo {
                repo: self.name.id.clone(),
                revision: self.name.revision.clone(),
                endpoint,
            },
            (404, Some((name, listing))) => {
                HubError::NoFile { repo, asked: format!("file {name:?}"), there: pick::there(&listing.names) }
            }
            (_, None) => HubError::Status { what: repo, status },
            (_, Some((name, _))) => HubError::Status { what: format!("{repo}: {name}"), status },
        }
    }
}

fn is_content(answer: &Response<Body>) -> bool {
    // An empty file has no first byte, and its size stands in the answer's range.
    answer.status().is_success()
        || (answer.status() == StatusCode::RANGE_NOT_SATISFIABLE && size_of(answer) == Some(0))
}

/// The size of the whole file, as far as an answer says.
fn size_of(answer: &Response<Body>) -> Option<u64> {
    let linked = || header(answer, "x-linked-size")?.parse().ok();
    let ranged = || header(answer, "content-range")?.rsplit_once('/')?.1.parse().ok();
    let whole = || {
        (answer.status() == StatusCode::OK).then(|| header(answer, "content-length")?.parse().ok()).flatten()
    };
    linked().or_else(ranged).or_else(whole)
}

fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// The beginning of what a server said.
fn short(text: &str) -> String {
    text.chars().take(120).collect()
}
