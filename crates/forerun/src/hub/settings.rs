//! The variables by which users of the hub's tools say where things are.

use std::env;
use std::path::PathBuf;

use hf_hub::Cache;

use super::error::{HubError, Result};

/// Where to look, and as whom.
pub(super) struct Settings {
    /// `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `huggingface` in the user's cache.
    pub(super) cache: Cache,
    /// `HF_TOKEN`, else what `hf auth login` left in `HF_HOME`.
    pub(super) token: Option<String>,
    /// `HF_ENDPOINT`, without a `/` at its end.
    pub(super) endpoint: String,
    /// `HF_HUB_OFFLINE`.
    pub(super) offline: bool,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// When the endpoint is no address, or there is neither a cache nor a home to put one in.
    pub(super) fn from_env() -> Result<Self> {
        let home = home()?;
        let in_home = Cache::new(home.join("hub"));
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token =
            text("HF_TOKEN").or_else(|| in_home.token()).filter(|t| t.bytes().all(|b| b.is_ascii_graphic()));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        if host
            .is_none_or(|h| h.is_empty() || !h.bytes().all(|b| b.is_ascii_graphic() && !b"?#@".contains(&b)))
        {
            let expected = "an address as https://huggingface.co";
            return Err(HubError::Setting { variable: "HF_ENDPOINT", found: endpoint, expected });
        }
        Ok(Self {
            cache: cache.map_or(in_home, Cache::new),
            token,
            endpoint: endpoint.trim_end_matches('/').into(),
            offline: text("HF_HUB_OFFLINE").is_some_and(|v| is_yes(&v)),
        })
    }
}

/// `HF_HOME`, else where the hub's own tools put it.
fn home() -> Result<PathBuf> {
    let caches = || path("XDG_CACHE_HOME").or_else(|| env::home_dir().map(|h| h.join(".cache")));
    let found = path("HF_HOME").or_else(|| caches().map(|c| c.join("huggingface")));
    let expected = "a folder, since there is no home";
    found.ok_or(HubError::Setting { variable: "HF_HOME", found: String::new(), expected })
}

fn path(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from)
}

fn text(variable: &str) -> Option<String> {
    env::var(variable).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}

/// What the hub's tools take for yes.
fn is_yes(value: &str) -> bool {
    ["1", "on", "yes", "true"].into_iter().any(|yes| value.eq_ignore_ascii_case(yes))
}
