//! Addresses of the web, as far as a hub needs them.

use ureq::Body;
use ureq::http::Response;

/// A file's name within an address.
pub(super) fn escape(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Scheme, host and port.
pub(super) fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find(['/', '?', '#']).map_or(address.len(), |at| host + at);
    &address[..end]
}

/// Where an answer sends the request on to.
pub(super) fn redirect(answer: &Response<Body>, from: &str) -> Option<String> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = answer.headers().get("location")?.to_str().ok()?;
    join(from, location)
}

/// A location as seen from an address. `None` for what is not fetched over HTTP.
fn join(from: &str, location: &str) -> Option<String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.into());
    }
    let origin = origin(from);
    if let Some(rest) = location.strip_prefix("//") {
        let scheme = origin.split("//").next()?;
        return Some(format!("{scheme}//{rest}"));
    }
    if location.starts_with('/') {
        return Some(format!("{origin}{location}"));
    }
    let relative = !location.is_empty() && !location.split(['/', '?']).next()?.contains(':');
    let folder = from.split(['?', '#']).next()?.rsplit_once('/').map(|(folder, _)| folder)?;
    (relative && folder.len() >= origin.len()).then(|| format!("{folder}/{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let from = "https://a.b:1/x/y?z=/";
        for (location, to) in [
            ("https://c/d", Some("https://c/d")),
            ("//c/d", Some("https://c/d")),
            ("/d?e", Some("https://a.b:1/d?e")),
            ("d", Some("https://a.b:1/x/d")),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(join(from, location).as_deref(), to, "{location:?}");
        }
        assert_eq!(join("https://a", "d"), None);
        assert_eq!(origin(from), "https://a.b:1");
        assert_eq!(origin("https://a?x"), "https://a");
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape("a b/ü#?%.gguf"), "a%20b/%C3%BC%23%3F%25.gguf");
    }
}
