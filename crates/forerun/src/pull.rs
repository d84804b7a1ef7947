//! `forerun pull`: files of a repository, brought into the cache.

use std::io::{IsTerminal, Write};

use serde::Serialize;

use crate::args::PullArgs;
use crate::error::{CliError, Result};
use crate::hub::{Hub, Pulled, RepoName};
use crate::progress::Interrupts;

pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let name: RepoName = args.name.parse()?;
    let hub = Hub::from_env()?;
    // Ctrl-C ends the program at once: what has arrived is in the cache, and the next pull goes on from there.
    Interrupts::install()
        .waiting(|| if args.list { list(&hub, &name, args.json) } else { get(&hub, &name, args) })
}

#[derive(Serialize)]
struct JsonPull {
    repository: String,
    revision: String,
    commit: String,
    path: String,
    files: Vec<JsonFile>,
}

#[derive(Serialize)]
struct JsonFile {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fetched_bytes: Option<u64>,
}

#[derive(Serialize)]
struct JsonList {
    repository: String,
    revision: String,
    commit: String,
    files: Vec<JsonFile>,
}

fn get(hub: &Hub, name: &RepoName, args: &PullArgs) -> Result<()> {
    let pulled = hub.pull(name)?;
    if args.check {
        hub.check(&pulled)?;
    }
    if args.json {
        return print_json(&JsonPull::new(name, pulled));
    }
    if std::io::stderr().is_terminal() {
        for file in pulled.files.iter().filter(|f| f.fetched > 0) {
            say!("{}: {} bytes, {} fetched", file.name, file.bytes, file.fetched);
        }
    }
    writeln!(std::io::stdout(), "{}", pulled.path.display()).map_err(CliError::Output)
}

impl JsonPull {
    fn new(name: &RepoName, pulled: Pulled) -> Self {
        let files = pulled.files.into_iter().map(|f| JsonFile {
            name: f.name,
            path: Some(f.path.display().to_string()),
            bytes: Some(f.bytes),
            fetched_bytes: Some(f.fetched),
        });
        Self {
            repository: name.id.clone(),
            revision: name.revision.clone(),
            commit: pulled.commit,
            path: pulled.path.display().to_string(),
            files: files.collect(),
        }
    }
}

fn list(hub: &Hub, name: &RepoName, json: bool) -> Result<()> {
    let contents = hub.contents(name)?;
    if json {
        let file = |(name, bytes)| JsonFile { name, path: None, bytes, fetched_bytes: None };
        return print_json(&JsonList {
            repository: name.id.clone(),
            revision: name.revision.clone(),
            commit: contents.commit,
            files: contents.files.into_iter().map(file).collect(),
        });
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} at {}: {}", name.repo(), contents.commit, contents.models)?;
    for (file, bytes) in &contents.files {
        let bytes = bytes.map_or("?".into(), |b| b.to_string());
        writeln!(out, "{bytes:>16}  {file}")?;
    }
    Ok(())
}

fn print_json(value: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}
