//! From the server's text to an [`Object`].

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Labels, ManagedFields, Meta, Object, Owner, ParseObjectError, Place, Places};
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
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    spec: Part<'a>,
    #[serde(borrow, default)]
    status: Part<'a>,
}

/// The text of a member, also where that is `null`.
#[derive(Default)]
struct Part<'a>(Option<&'a RawValue>);

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
    let metadata = raw.metadata.ok_or(ParseObjectError::Missing("metadata"))?.get();
    let (meta, cut) = metadata_of(metadata, managed)?;
    let text = json.trim();
    let base = offset(text, metadata);
    let edit = Edit { text, insert: missing_type(gvk, &raw), cut: base + cut.start..base + cut.end };
    let place = |part: Option<&str>| part.map_or(Ok(Place::default()), |part| edit.place(part));
    let places = Places {
        metadata: place(Some(metadata))?,
        spec: place(raw.spec.0.map(RawValue::get))?,
        status: place(raw.status.0.map(RawValue::get))?,
    };
    Ok(Object { json: edit.finish(), meta, places })
}

/// [`Object::parse_metadata`].
pub(super) fn metadata(gvk: &Gvk, json: &str, managed: ManagedFields) -> Result<Object, ParseObjectError> {
    let raw: RawObject<'_> = serde_json::from_str(json)?;
    let expected = |text: &Option<Text<'_>>, value: &str| text.as_ref().is_none_or(|text| text.0 == value);
    if !expected(&raw.api_version, "meta.k8s.io/v1") || !expected(&raw.kind, "PartialObjectMetadata") {
        return Err(other_kind(gvk, &raw));
    }
    let metadata = raw.metadata.ok_or(ParseObjectError::Missing("metadata"))?.get();
    if u32::try_from(metadata.len()).is_err() {
        return Err(TOO_LARGE);
    }
    let (meta, cut) = metadata_of(metadata, managed)?;
    if cut.is_empty() {
        return Ok(with_type(gvk, metadata, meta));
    }
    let metadata = [&metadata[..cut.start], &metadata[cut.end..]].concat();
    Ok(with_type(gvk, &metadata, meta))
}

/// An object of this kind that has only this metadata.
pub(super) fn with_type(gvk: &Gvk, metadata: &str, meta: Meta) -> Object {
    let [api_version, kind] = type_members(gvk);
    let json = format!("{{{api_version},{kind},\"metadata\":{metadata}}}");
    let end = u32::try_from(json.len() - 1).unwrap_or_default();
    let start = u32::try_from(json.len() - 1 - metadata.len()).unwrap_or_default();
    let places = Places { metadata: Place { start, end }, ..Places::default() };
    Object { json: json.into(), meta, places }
}

/// Parsed, and what is to be cut out of its text.
fn metadata_of(text: &str, managed: ManagedFields) -> Result<(Meta, Range<usize>), ParseObjectError> {
    let raw: RawMeta<'_> = serde_json::from_str(text)?;
    let strip = managed == ManagedFields::Strip && raw.managed_fields.is_some();
    let cut = if strip { managed_fields(text) } else { 0..0 };
    Ok((meta(raw)?, cut))
}

/// `"apiVersion":…` and `"kind":…`, as they stand in an object.
fn type_members(gvk: &Gvk) -> [String; 2] {
    let member = |key: &str, value: &str| format!("\"{key}\":{}", serde_json::Value::from(value));
    [member("apiVersion", &gvk.api_version()), member("kind", &gvk.kind)]
}

/// What a list left out, with a comma after each.
fn missing_type(gvk: &Gvk, raw: &RawObject<'_>) -> String {
    if raw.api_version.is_some() && raw.kind.is_some() {
        return String::new();
    }
    let [api_version, kind] = type_members(gvk);
    let mut missing = String::new();
    for (member, found) in [(api_version, &raw.api_version), (kind, &raw.kind)] {
        if found.is_none() {
            missing.push_str(&member);
            missing.push(',');
        }
    }
    missing
}

/// Where a part of a text stands in it.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
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

/// The member `managedFields` of a text of metadata, with the comma before it or else behind it.
fn managed_fields(metadata: &str) -> Range<usize> {
    let mut before = None;
    let mut inside = members(metadata);
    while let Some(member) = inside.next() {
        if member.key == "managedFields" {
            let start = before.unwrap_or(member.start);
            let end = match (before, inside.next()) {
                (None, Some(next)) => next.start,
                _ => member.end,
            };
            return start..end;
        }
        before = Some(member.end);
    }
    0..0
}

/// One insertion behind the opening brace and one cut, in one copy.
struct Edit<'a> {
    text: &'a str,
    insert: String,
    cut: Range<usize>,
}

/// The server's own limit is about 1.5 MB.
const TOO_LARGE: ParseObjectError = ParseObjectError::Missing("a size below 4 GiB");

impl Edit<'_> {
    /// Where a part of the text will stand. No part begins or ends inside of the cut.
    fn place(&self, part: &str) -> Result<Place, ParseObjectError> {
        let start = offset(self.text, part);
        let moved = |at: usize| {
            let cut = if at > self.cut.start { self.cut.len() } else { 0 };
            u32::try_from(at + self.insert.len() - cut).map_err(|_| TOO_LARGE)
        };
        Ok(Place { start: moved(start)?, end: moved(start + part.len())? })
    }

    fn finish(self) -> Box<str> {
        let Self { text, insert, cut } = self;
        if insert.is_empty() && cut.is_empty() {
            return text.into();
        }
        let mut out = String::with_capacity(text.len() + insert.len() - cut.len());
        out.push_str(&text[..1]);
        out.push_str(&insert);
        out.push_str(&text[1..cut.start]);
        out.push_str(&text[cut.end..]);
        out.into()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|value| Self(Some(value)))
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
