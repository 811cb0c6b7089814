//! From the server's text to an [`Object`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Labels, ManagedFields, Meta, Object, Owner, ParseObjectError};
use crate::gvk::Gvk;
use crate::ids::{ObjectName, ResourceVersion, Uid};
use crate::json::members;

/// A string that borrows from the text where it has no escapes.
#[derive(Default)]
struct Text<'a>(Cow<'a, str>);

/// What is read of an object. All the rest is checked to be JSON and skipped.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object of the cluster")]
struct RawObject<'a> {
    #[serde(borrow)]
    api_version: Option<Text<'a>>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    metadata: Option<RawMeta<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "the metadata of an object")]
struct RawMeta<'a> {
    #[serde(borrow)]
    namespace: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
    generation: Option<u64>,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(borrow)]
    owner_references: Option<Vec<RawOwner<'a>>>,
    #[serde(borrow)]
    labels: Option<RawLabels<'a>>,
    #[serde(borrow)]
    finalizers: Option<Vec<Text<'a>>>,
    managed_fields: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an owner reference")]
struct RawOwner<'a> {
    #[serde(borrow)]
    api_version: Text<'a>,
    #[serde(borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    uid: Text<'a>,
    controller: Option<bool>,
}

struct RawLabels<'a>(Vec<(Text<'a>, Text<'a>)>);

/// [`Object::parse`].
pub(super) fn object(gvk: &Gvk, json: &str, managed: ManagedFields) -> Result<Object, ParseObjectError> {
    let raw: RawObject<'_> = serde_json::from_str(json)?;
    let api_version = gvk.api_version();
    let other =
        |found: &Option<Text<'_>>, expected: &str| found.as_ref().is_some_and(|text| text.0 != expected);
    if other(&raw.api_version, &api_version) || other(&raw.kind, &gvk.kind) {
        return Err(other_kind(gvk, &raw));
    }
    let text = json.trim();
    let mut edit = Edit::new(text);
    if raw.api_version.is_none() || raw.kind.is_none() {
        edit.insert_type(gvk);
    }
    let metadata = raw.metadata.ok_or(ParseObjectError::Missing("metadata"))?;
    if managed == ManagedFields::Strip && metadata.managed_fields.is_some() {
        edit.cut_managed_fields();
    }
    Ok(Object { json: edit.finish(), meta: meta(metadata)? })
}

/// [`Object::parse_metadata`].
pub(super) fn metadata(gvk: &Gvk, json: &str, managed: ManagedFields) -> Result<Object, ParseObjectError> {
    let raw: RawObject<'_> = serde_json::from_str(json)?;
    let expected = |text: &Option<Text<'_>>, value: &str| text.as_ref().is_none_or(|text| text.0 == value);
    if !expected(&raw.api_version, "meta.k8s.io/v1") || !expected(&raw.kind, "PartialObjectMetadata") {
        return Err(other_kind(gvk, &raw));
    }
    let metadata = raw.metadata.ok_or(ParseObjectError::Missing("metadata"))?;
    let strip = managed == ManagedFields::Strip && metadata.managed_fields.is_some();
    let text = crate::json::pointer(json, "/metadata").ok_or(ParseObjectError::Missing("metadata"))?;
    let text = with_type(gvk, text);
    let json = if strip {
        let mut edit = Edit::new(&text);
        edit.cut_managed_fields();
        edit.finish()
    } else {
        text
    };
    Ok(Object { json, meta: meta(metadata)? })
}

/// An object of this kind that has only this metadata.
pub(super) fn with_type(gvk: &Gvk, metadata: &str) -> Box<str> {
    let [api_version, kind] = type_members(gvk);
    format!("{{{},{},\"metadata\":{metadata}}}", api_version.1, kind.1).into()
}

/// `apiVersion` and `kind`: the key, and the member as it stands in an object.
fn type_members(gvk: &Gvk) -> [(&'static str, String); 2] {
    let member =
        |key: &'static str, value: &str| (key, format!("\"{key}\":{}", serde_json::Value::from(value)));
    [member("apiVersion", &gvk.api_version()), member("kind", &gvk.kind)]
}

fn other_kind(expected: &Gvk, raw: &RawObject<'_>) -> ParseObjectError {
    let text = |part: &Option<Text<'_>>| {
        part.as_ref().map_or_else(|| "?".to_owned(), |text| text.0.chars().take(128).collect())
    };
    ParseObjectError::OtherKind {
        expected: expected.clone(),
        found: format!("{}.{}", text(&raw.kind), text(&raw.api_version)),
    }
}

fn meta(raw: RawMeta<'_>) -> Result<Meta, ParseObjectError> {
    let name = needed(raw.name, "metadata.name")?;
    let uid = needed(raw.uid, "metadata.uid")?;
    let version = needed(raw.resource_version, "metadata.resourceVersion")?;
    Ok(Meta {
        name: ObjectName {
            namespace: raw.namespace.filter(|text| !text.0.is_empty()).map(|text| (*text.0).into()),
            name: (*name.0).into(),
        },
        uid: Uid::new(&uid.0),
        resource_version: ResourceVersion::parse(&version.0)
            .ok_or(ParseObjectError::Missing("metadata.resourceVersion"))?,
        generation: raw.generation.unwrap_or_default(),
        deleting: raw.deletion_timestamp.is_some(),
        owners: raw.owner_references.unwrap_or_default().iter().map(owner).collect(),
        labels: raw.labels.map_or_else(Labels::default, |labels| {
            Labels::new(labels.0.iter().map(|(key, value)| (&*key.0, &*value.0)))
        }),
        finalizers: raw.finalizers.unwrap_or_default().into_iter().map(|text| text.0.into()).collect(),
    })
}

fn owner(raw: &RawOwner<'_>) -> Owner {
    Owner::new(
        &raw.api_version.0,
        &raw.kind.0,
        &raw.name.0,
        Uid::new(&raw.uid.0),
        raw.controller.unwrap_or_default(),
    )
}

fn needed<'a>(text: Option<Text<'a>>, what: &'static str) -> Result<Text<'a>, ParseObjectError> {
    text.filter(|text| !text.0.is_empty()).ok_or(ParseObjectError::Missing(what))
}

/// Cuts and insertions in one text, done in one copy.
struct Edit<'a> {
    text: &'a str,
    insert: String,
    cut: std::ops::Range<usize>,
}

impl<'a> Edit<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, insert: String::new(), cut: 0..0 }
    }

    fn insert_type(&mut self, gvk: &Gvk) {
        // Whichever of the two is there already is right, and must not stand there twice.
        for (key, member) in type_members(gvk) {
            if !members(self.text).any(|known| known.key == key) {
                self.insert.push_str(&member);
                self.insert.push(',');
            }
        }
    }

    fn cut_managed_fields(&mut self) {
        let Some(metadata) = members(self.text).find(|member| member.key == "metadata") else { return };
        let base = metadata.end - metadata.value.len();
        let mut before = None;
        let mut inside = members(metadata.value);
        while let Some(member) = inside.next() {
            if member.key == "managedFields" {
                // With the comma before it, or else with the one behind it.
                let start = before.unwrap_or(member.start);
                let end = match (before, inside.next()) {
                    (None, Some(next)) => next.start,
                    _ => member.end,
                };
                self.cut = base + start..base + end;
                return;
            }
            before = Some(member.end);
        }
    }

    fn finish(self) -> Box<str> {
        let Self { text, insert, cut } = self;
        if insert.is_empty() && cut.is_empty() {
            return text.into();
        }
        let mut out = String::with_capacity(text.len() + insert.len() - cut.len());
        let (open, body) = text.split_at(1);
        let cut = cut.start.max(1) - 1..cut.end.max(1) - 1;
        out.push_str(open);
        out.push_str(&insert);
        out.push_str(&body[..cut.start]);
        out.push_str(&body[cut.end..]);
        out.into()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawLabels<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsVisitor;
        impl<'de> Visitor<'de> for LabelsVisitor {
            type Value = RawLabels<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut labels = Vec::with_capacity(map.size_hint().unwrap_or(4));
                while let Some(pair) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    labels.push(pair);
                }
                Ok(RawLabels(labels))
            }
        }
        deserializer.deserialize_map(LabelsVisitor)
    }
}
