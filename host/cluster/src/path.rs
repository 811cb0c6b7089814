//! Paths of the Kubernetes API.
//!
//! The single place where URLs are made. Names come from objects that may be hostile, so every
//! segment is percent-encoded.

use std::fmt::Write as _;

use reeve_core::gvk::{Gvk, Kind, Scope};
use reeve_core::ids::ObjectName;

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub fn group_version(gvk: &Gvk) -> String {
    if gvk.group.is_empty() {
        format!("/api/{}", segment(&gvk.version))
    } else {
        format!("/apis/{}/{}", segment(&gvk.group), segment(&gvk.version))
    }
}

/// The collection of a kind, in one namespace or (`None`) across all.
pub fn collection(kind: &Kind, namespace: Option<&str>) -> String {
    let mut path = group_version(&kind.gvk);
    if let (Scope::Namespaced, Some(namespace)) = (kind.scope, namespace) {
        path.push_str("/namespaces/");
        path.push_str(&segment(namespace));
    }
    path.push('/');
    path.push_str(&kind.plural);
    path
}

/// One object, or one of its subresources. The namespace of a cluster-scoped kind is ignored.
pub fn object(kind: &Kind, name: &ObjectName, subresource: Option<&str>) -> String {
    let mut path = collection(kind, name.namespace.as_deref());
    path.push('/');
    path.push_str(&segment(&name.name));
    if let Some(subresource) = subresource {
        path.push('/');
        path.push_str(&segment(subresource));
    }
    path
}

/// Percent-encodes everything but the unreserved characters of RFC 3986; for path segments and
/// for values in a query.
pub fn segment(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, kind: &str, plural: &str, scope: Scope) -> Kind {
        let gvk = Gvk::new(group, "v1", kind);
        Kind { gvk, plural: plural.into(), scope, verbs: Vec::new(), subresources: Vec::new() }
    }

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        let deployment = kind("apps", "Deployment", "deployments", Scope::Namespaced);
        let node = kind("", "Node", "nodes", Scope::Cluster);
        assert_eq!(collection(&deployment, None), "/apis/apps/v1/deployments");
        assert_eq!(collection(&deployment, Some("web")), "/apis/apps/v1/namespaces/web/deployments");
        assert_eq!(
            object(&deployment, &ObjectName::namespaced("web", "a"), Some("status")),
            "/apis/apps/v1/namespaces/web/deployments/a/status"
        );
        assert_eq!(object(&node, &ObjectName::cluster("n"), None), "/api/v1/nodes/n");
        assert_eq!(object(&node, &ObjectName::namespaced("web", "n"), None), "/api/v1/nodes/n");
    }

    #[test]
    fn hostile_names_stay_in_their_segment() {
        let node = kind("", "Node", "nodes", Scope::Cluster);
        assert_eq!(object(&node, &ObjectName::cluster("../a?b#c"), None), "/api/v1/nodes/..%2Fa%3Fb%23c");
    }
}
