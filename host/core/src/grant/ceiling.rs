//! What the operator allows at most: `--allow`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::Verb;
use crate::gvk::GroupKind;

/// What the operator allows at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ceiling {
    /// The host's own namespace: Secrets are allowed only there by default.
    pub host_namespace: Arc<str>,
    /// From `--allow`; each adds something. Empty means [`CeilingRule::Default`] alone.
    pub rules: Vec<CeilingRule>,
}

/// One `--allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CeilingRule {
    /// `default`: everything but Secrets outside of the host's namespace, RBAC objects, and
    /// webhook configurations.
    Default,
    /// Something more, or, without `default`, something at all.
    Rule(Rule),
}

/// `GROUP/KIND[/SUBRESOURCE][@NAMESPACE][:VERB,…]`, `*` for any group, kind, subresource or
/// namespace; the group of core kinds is empty, as in `/ConfigMap@web:get,apply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `None` for any.
    pub group: Option<Arc<str>>,
    /// `None` for any.
    pub kind: Option<Arc<str>>,
    /// `None` for the object itself and any subresource.
    pub subresource: Option<Arc<str>>,
    /// `None` for any, and for what lives in none.
    pub namespace: Option<Arc<str>>,
    /// Empty for any.
    pub verbs: BTreeSet<Verb>,
}

/// Why a text is no [`CeilingRule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rule {rule:?}: {reason}; write `default` or GROUP/KIND[/SUBRESOURCE][@NAMESPACE][:VERB,...] with * for any, for example \"/ConfigMap@web:get,apply\" or \"apps/*\""
)]
pub struct InvalidCeilingRule {
    rule: String,
    reason: String,
}

// === impl Ceiling ===

impl Ceiling {
    /// Everything but Secrets outside of the host's namespace, RBAC objects, and webhook
    /// configurations.
    pub fn default_in(host_namespace: &str) -> Self {
        Self { host_namespace: host_namespace.into(), rules: Vec::new() }
    }

    /// Whether something may be done in a namespace; `None` is the cluster's own objects, or all
    /// namespaces at once.
    pub fn allows(&self, verb: Verb, kind: &GroupKind, subresource: &str, namespace: Option<&str>) -> bool {
        match self.namespaces(verb, kind, subresource) {
            None => true,
            Some(some) => namespace.is_some_and(|namespace| some.contains(namespace)),
        }
    }

    /// The namespaces in which something may be done; `None` is all of them, and the cluster's
    /// own objects.
    pub fn namespaces(&self, verb: Verb, kind: &GroupKind, subresource: &str) -> Option<BTreeSet<Arc<str>>> {
        let default = [CeilingRule::Default];
        let rules = if self.rules.is_empty() { &default[..] } else { &self.rules[..] };
        let mut some = BTreeSet::new();
        for rule in rules {
            match rule {
                CeilingRule::Default => match reserved(kind) {
                    None => return None,
                    Some(Reserved::HostNamespace) => _ = some.insert(Arc::clone(&self.host_namespace)),
                    Some(Reserved::Wholly) => {}
                },
                CeilingRule::Rule(rule) if rule.covers(verb, kind, subresource) => match &rule.namespace {
                    None => return None,
                    Some(namespace) => _ = some.insert(Arc::clone(namespace)),
                },
                CeilingRule::Rule(_) => {}
            }
        }
        Some(some)
    }

    /// The flags that would allow it and all that is allowed now.
    pub(super) fn remedy(
        &self,
        verb: Verb,
        kind: &GroupKind,
        subresource: &str,
        namespace: Option<&str>,
    ) -> String {
        let rule = Rule {
            group: Some(Arc::clone(&kind.group)),
            kind: Some(Arc::clone(&kind.kind)),
            subresource: (!subresource.is_empty()).then(|| subresource.into()),
            namespace: namespace.map(Into::into),
            verbs: BTreeSet::from([verb]),
        };
        let keep = if self.rules.is_empty() { "--allow default " } else { "" };
        format!("{keep}--allow '{rule}'")
    }
}

/// What the default ceiling holds back.
enum Reserved {
    HostNamespace,
    Wholly,
}

/// Kinds through which a plugin could read credentials, widen its own rights, or sit in the way
/// of everybody's requests.
fn reserved(kind: &GroupKind) -> Option<Reserved> {
    match (&*kind.group, &*kind.kind) {
        ("", "Secret") => Some(Reserved::HostNamespace),
        ("rbac.authorization.k8s.io", _)
        | (
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
        ) => Some(Reserved::Wholly),
        _ => None,
    }
}

// === impl Rule ===

impl Rule {
    fn covers(&self, verb: Verb, kind: &GroupKind, subresource: &str) -> bool {
        let is = |rule: &Option<Arc<str>>, value: &str| rule.as_deref().is_none_or(|rule| rule == value);
        is(&self.group, &kind.group)
            && is(&self.kind, &kind.kind)
            && is(&self.subresource, subresource)
            && (self.verbs.is_empty() || self.verbs.contains(&verb))
    }
}

impl FromStr for CeilingRule {
    type Err = InvalidCeilingRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "default" {
            return Ok(Self::Default);
        }
        rule(text)
            .map(Self::Rule)
            .map_err(|reason| InvalidCeilingRule { rule: text.chars().take(256).collect(), reason })
    }
}

fn rule(text: &str) -> Result<Rule, String> {
    let (rest, verbs) = match text.split_once(':') {
        Some((rest, verbs)) => (rest, verbs.split(',').map(verb).collect::<Result<_, _>>()?),
        None => (text, BTreeSet::new()),
    };
    let (path, namespace) = match rest.split_once('@') {
        Some((path, namespace)) => (path, part("namespace", namespace)?),
        None => (rest, None),
    };
    let mut parts = path.splitn(3, '/');
    let group = match parts.next() {
        Some("") => Some("".into()),
        group => part("group", group.unwrap_or_default())?,
    };
    let kind = parts.next().ok_or_else(|| "it has no kind; core kinds begin with '/'".to_owned())?;
    Ok(Rule {
        group,
        kind: part("kind", kind)?,
        subresource: parts.next().map_or(Ok(None), |subresource| part("subresource", subresource))?,
        namespace,
        verbs,
    })
}

/// `None` for `*`.
fn part(what: &str, text: &str) -> Result<Option<Arc<str>>, String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    match text {
        "*" => Ok(None),
        _ if !text.is_empty() && text.bytes().all(valid) => Ok(Some(text.into())),
        _ => Err(format!("{text:?} is no {what}")),
    }
}

fn verb(text: &str) -> Result<Verb, String> {
    Verb::ALL
        .into_iter()
        .find(|verb| verb.as_str() == text)
        .ok_or_else(|| format!("{text:?} is no verb (get, create, apply, patch, delete)"))
}

impl fmt::Display for CeilingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Rule(rule) => rule.fmt(f),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = |part: &Option<Arc<str>>| part.clone().unwrap_or_else(|| "*".into());
        write!(f, "{}/{}", any(&self.group), any(&self.kind))?;
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, "@{namespace}")?;
        }
        for (index, verb) in self.verbs.iter().enumerate() {
            write!(f, "{}{verb}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}
