//! A hub on this machine: a list of files, redirects to their content elsewhere, ranges, checksums as etags.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A file of a repository.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Large files lie elsewhere, behind a redirect, and have a SHA-256.
    pub(super) large: bool,
}

/// What the hub does next.
#[derive(Clone, Default)]
pub(super) struct Manners {
    /// An answer to everything: status and `x-error-code`.
    pub(super) refuse: Option<(u16, &'static str)>,
    /// Answers only with this token.
    pub(super) token: Option<&'static str>,
    /// Ends so many bodies after half of what was to come.
    pub(super) cuts: usize,
    /// Goes silent after half of a body.
    pub(super) stall: bool,
    /// Sends other bytes of the same length.
    pub(super) spoil: bool,
    /// Sends the whole file where a range is asked for.
    pub(super) no_ranges: bool,
    /// Says this in place of the list.
    pub(super) listing: Option<String>,
    /// Says this etag, size or location in place of the right one.
    pub(super) etag: Option<String>,
    pub(super) size: Option<u64>,
    pub(super) location: Option<String>,
}

struct State {
    files: Vec<Served>,
    manners: Manners,
    /// `PATH` or `PATH RANGE` of every request.
    log: Vec<String>,
}

/// A running hub with one repository, `owner/name`; it ends with the process.
pub(super) struct Hub {
    state: Arc<Mutex<State>>,
    pub(super) endpoint: String,
}

impl Hub {
    pub(super) fn start(files: &[(&str, &[u8], bool)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let files = files.iter().map(|(name, bytes, large)| Served {
            name: (*name).into(),
            bytes: bytes.to_vec(),
            large: *large,
        });
        let state = State { files: files.collect(), manners: Manners::default(), log: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A peer that goes away ends its own connection only.
                std::thread::spawn(move || drop(answer(&stream, &state)));
            }
        });
        Self { state, endpoint }
    }

    pub(super) fn behave(&self, manners: Manners) {
        self.state.lock().expect("the state").manners = manners;
    }

    /// Requests since the last call.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("the state").log)
    }

    /// Requests for content since the last call.
    pub(super) fn bodies(&self) -> Vec<String> {
        let all = self.requests().into_iter();
        all.filter(|r| !r.starts_with("/api/") && !r.ends_with(" bytes=0-0")).collect()
    }
}

pub(super) fn etag(file: &Served) -> String {
    if file.large {
        return format!("{:x}", Sha256::digest(&file.bytes));
    }
    let mut sum = Sha1::new();
    sum.update(format!("blob {}\0", file.bytes.len()));
    sum.update(&file.bytes);
    format!("{:x}", sum.finalize())
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut token) = (None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    let (head, body, whole) = {
        let mut state = state.lock().expect("the state");
        let entry = range.as_ref().map_or_else(|| path.clone(), |r| format!("{path} {r}"));
        state.log.push(entry);
        let (head, body) = reply(&mut state, &path, range.as_deref(), token.as_deref());
        let half =
            if state.manners.stall && path.starts_with("/content/") { body.len() / 2 } else { body.len() };
        let whole = half == body.len();
        (head, body[..half].to_vec(), whole)
    };
    stream.write_all(format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").as_bytes())?;
    stream.write_all(&body)?;
    if !whole {
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
    Ok(())
}

fn reply(state: &mut State, path: &str, range: Option<&str>, token: Option<&str>) -> (String, Vec<u8>) {
    let manners = state.manners.clone();
    if let Some((status, code)) = manners.refuse {
        return (format!("{status} No\r\nX-Error-Code: {code}\r\nContent-Length: 0"), Vec::new());
    }
    let content = path.strip_prefix("/content/");
    if let (Some(expected), None) = (manners.token, content)
        && token != Some(&format!("Bearer {expected}"))
    {
        return ("401 No\r\nX-Error-Code: GatedRepo\r\nContent-Length: 0".into(), Vec::new());
    }
    if path.starts_with("/api/models/owner/name/revision/main") {
        let siblings: Vec<_> =
            state.files.iter().map(|f| serde_json::json!({ "rfilename": f.name })).collect();
        let listing = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        let listing = manners.listing.unwrap_or(listing).into_bytes();
        return (format!("200 OK\r\nContent-Length: {}", listing.len()), listing);
    }
    let name = content.or_else(|| path.strip_prefix(&format!("/owner/name/resolve/{COMMIT}/")));
    let Some(file) = state.files.iter().find(|f| Some(f.name.as_str()) == name).cloned() else {
        return ("404 Not Found\r\nX-Error-Code: RepoNotFound\r\nContent-Length: 0".into(), Vec::new());
    };
    let tag = manners.etag.unwrap_or_else(|| etag(&file));
    let size = manners.size.unwrap_or(file.bytes.len() as u64);
    if file.large && content.is_none() {
        let to = manners.location.unwrap_or_else(|| format!("/content/{}", file.name));
        let head = "302 Found\r\nContent-Length: 0\r\nX-Repo-Commit";
        let linked = format!("X-Linked-Etag: \"{tag}\"\r\nX-Linked-Size: {size}");
        return (format!("{head}: {COMMIT}\r\n{linked}\r\nLocation: {to}"), Vec::new());
    }
    let mut bytes = file.bytes;
    if manners.spoil {
        bytes.iter_mut().for_each(|b| *b = b.wrapping_add(1));
    }
    let whole = bytes.len();
    let bounds = range.filter(|_| !manners.no_ranges).and_then(|r| r.strip_prefix("bytes=")?.split_once('-'));
    let from: usize = bounds.map_or(0, |(from, _)| from.parse().expect("a number"));
    if bounds.is_some() && from >= whole {
        let head =
            format!("416 Range\r\nContent-Range: bytes */{whole}\r\nETag: \"{tag}\"\r\nContent-Length: 0");
        return (head, Vec::new());
    }
    let to = bounds.and_then(|(_, to)| to.parse::<usize>().ok()).map_or(whole, |to| (to + 1).min(whole));
    let mut body = bytes[from..to].to_vec();
    let status = if bounds.is_some() { "206 Partial Content" } else { "200 OK" };
    let head = format!(
        "{status}\r\nETag: \"{tag}\"\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{whole}",
        body.len(),
        to.saturating_sub(1)
    );
    if manners.cuts > 0 && body.len() > 1 {
        state.manners.cuts -= 1;
        body.truncate(body.len() / 2);
    }
    (head, body)
}
