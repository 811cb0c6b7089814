//! What people read about a stream in trouble. The same trouble gives the same text, so that it is
//! logged and shown once.

use std::error::Error;
use std::sync::Arc;

use reeve_core::gvk::Kind;

use super::state::Trouble;
use crate::connection::{RequestError, chain};

/// 403 or 401, with the rule that helps (feature I5).
pub(super) fn forbidden(verb: &str, kind: &Kind, namespace: Option<&str>, unknown_account: bool) -> Arc<str> {
    let gvk = &kind.gvk;
    let place = match namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "in the whole cluster".to_owned(),
    };
    if unknown_account {
        return format!(
            "the API server does not know this host's account (401), so it may not {verb} {gvk} {place}: renew its credentials"
        )
        .into();
    }
    let role = if namespace.is_some() { "Role in that namespace" } else { "ClusterRole" };
    format!(
        "this host may not {verb} {gvk} {place}: bind its account to a {role} with the rule {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"get\", \"list\", \"watch\"]}}",
        gvk.group, kind.plural
    )
    .into()
}

/// A kind that cannot be watched at all.
pub(super) fn unwatchable(kind: &Kind) -> Arc<str> {
    format!("{} cannot be watched: the API server offers no list and watch for it", kind.gvk).into()
}

/// A request got no answer.
pub(super) fn unreachable(error: &RequestError) -> Trouble {
    Trouble::Unreachable(error.to_string().into())
}

/// An answer broke off.
pub(super) fn broke(error: &dyn Error) -> Trouble {
    Trouble::Unreachable(format!("the connection to the API server broke: {}", chain(error)).into())
}
