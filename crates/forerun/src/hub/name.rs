//! Names of repositories as the command line has them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::error::HubError;

/// The longest owner or name of a repository.
const LONGEST: usize = 96;

/// The revision that is meant where none is named.
const MAIN: &str = "main";

/// `OWNER/NAME[@REVISION][:TYPE or :FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoName {
    /// `OWNER/NAME`.
    pub(crate) id: String,
    /// A branch, a tag or a commit.
    pub(crate) revision: String,
    /// A weight type or a file.
    pub(crate) what: Option<String>,
}

impl RepoName {
    /// What a word of the command line means as a repository. `None` for what can only be a path: no `/`, more than
    /// one, a part that no repository could have, or the name of a file of weights.
    pub(crate) fn guess(word: &Path) -> Option<Self> {
        let name: Self = word.to_str()?.parse().ok()?;
        let weights = Path::new(&name.id)
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("gguf") || e.eq_ignore_ascii_case("safetensors"));
        (!weights).then_some(name)
    }

    /// The name without what is asked for.
    pub(crate) fn repo(&self) -> String {
        if self.revision == MAIN { self.id.clone() } else { format!("{}@{}", self.id, self.revision) }
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo())?;
        self.what.as_ref().map_or(Ok(()), |what| write!(f, ":{what}"))
    }
}

impl FromStr for RepoName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |why| HubError::Name { found: text.chars().take(200).collect(), why };
        let (repo, what) = text.split_once(':').map_or((text, None), |(repo, what)| (repo, Some(what)));
        let (id, revision) = repo.split_once('@').unwrap_or((repo, MAIN));
        let (owner, name) = id.split_once('/').ok_or_else(|| wrong("it has no owner"))?;
        if !plain(owner) || !plain(name) {
            return Err(wrong("an owner and a name are letters, digits, `-`, `_` and `.`"));
        }
        if !revision.split('/').all(|part| word(part) && !part.starts_with('.') && !part.ends_with(".lock")) {
            return Err(wrong("it has no such revision"));
        }
        if what.is_some_and(|what| !file_name(what)) {
            return Err(wrong("no file can have that name"));
        }
        Ok(Self { id: id.into(), revision: revision.into(), what: what.map(Into::into) })
    }
}

/// Whether a hub accepts this as an owner or a name.
fn plain(part: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let (first, last) = (part.chars().next(), part.chars().next_back());
    word(part) && edge(first) && edge(last) && !part.contains("--") && !part.contains("..")
}

/// Letters, digits and the marks between them: nothing that means something to a path or an address.
pub(super) fn word(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=LONGEST).contains(&text.len()) && text.chars().all(inner) && !text.contains("..")
}

/// Whether this can be the name of a file in a folder, with `/` between folders: nothing that leads out of the folder
/// on any system, nothing that a terminal would obey.
pub(super) fn file_name(name: &str) -> bool {
    name.len() <= 1024
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !name.chars().any(|c| c.is_control() || matches!(c, '\\' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_up_to_four_parts() {
        for (text, id, revision, what) in [
            ("a/b", "a/b", "main", None),
            ("Qwen/Qwen3.5-2B-GGUF:q4_k_m", "Qwen/Qwen3.5-2B-GGUF", "main", Some("q4_k_m")),
            ("a/b@v1.0", "a/b", "v1.0", None),
            ("a/b@refs/pr/3:x/y z.gguf", "a/b", "refs/pr/3", Some("x/y z.gguf")),
        ] {
            let name: RepoName = text.parse().expect("a name");
            let parts = (name.id.as_str(), name.revision.as_str(), name.what.as_deref());
            assert_eq!(parts, (id, revision, what));
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        for text in [
            "",
            "a",
            "/a/b",
            "a/b/c",
            "../b",
            "a/..",
            "./b",
            "a/b@",
            "a/b@../c",
            "a/b@/c",
            "a/b@x//y",
            "a/b:",
            "a/b:/x",
            "a/b:../x",
            "a/b:x/../y",
            "a/b:x\\y",
            "a/b:x\ny",
            "a b/c",
            "a--b/c",
            "-a/b",
            "a/b.",
            "a/b?x",
            "a/b#x",
            "a/%2e",
            "a/b@x.lock",
            "C:/b",
        ] {
            assert!(text.parse::<RepoName>().is_err(), "{text:?}");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<RepoName>().is_err());
    }

    #[test]
    fn a_file_of_weights_is_a_path() {
        assert!(RepoName::guess(Path::new("models/a.gguf")).is_none());
        assert!(RepoName::guess(Path::new("models/a.GGUF:q8_0")).is_none());
        assert!(RepoName::guess(Path::new("models/a-GGUF:a.gguf")).is_some());
    }
}
