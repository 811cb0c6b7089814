//! Reading the answers of writes: whether the object is still there, and what the server warns of.

use reeve_core::ids::Uid;
use serde::Deserialize;

use super::refusal::cut;
use super::request::Action;

/// What an answer says of its object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is there.
    Alive,
    /// It is not there any more.
    Gone(Option<Uid>),
    /// It is of a kind that is only answered, such as an access review.
    NeverStored,
}

/// Reads the fate of an object from the answer of a write. A delete that is done answers with a
/// `Status`, or (Services do) with the last state of the object; taking away the last finalizer
/// of an object that is being deleted answers with the object, at its old version.
pub(super) fn fate(action: Action<'_>, body: &[u8]) -> Fate {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Answer {
        kind: String,
        details: Details,
        metadata: Metadata,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Details {
        uid: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        uid: String,
        deletion_timestamp: Option<serde::de::IgnoredAny>,
        deletion_grace_period_seconds: Option<i64>,
        finalizers: Vec<serde::de::IgnoredAny>,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else { return Fate::Alive };
    let (delete, known) = match action {
        Action::Delete { uid, .. } => (true, uid),
        _ => (false, None),
    };
    let uid = |text: &str| if text.is_empty() { known.cloned() } else { Some(Uid::new(text)) };
    if delete && answer.kind == "Status" {
        return Fate::Gone(uid(&answer.details.uid));
    }
    let meta = &answer.metadata;
    if meta.uid.is_empty() {
        return Fate::NeverStored;
    }
    let held =
        !meta.finalizers.is_empty() || meta.deletion_grace_period_seconds.is_some_and(|seconds| seconds > 0);
    match meta.deletion_timestamp {
        Some(_) if held => Fate::Alive,
        Some(_) => Fate::Gone(uid(&meta.uid)),
        None if delete => Fate::Gone(uid(&meta.uid)),
        None => Fate::Alive,
    }
}

/// The text of `299 - "text"`.
pub(super) fn warning_text(header: &str) -> Option<String> {
    let (_, quoted) = header.split_once('"')?;
    let quoted = quoted.strip_suffix('"').unwrap_or(quoted);
    let text = cut(&quoted.replace("\\\"", "\""), 512).to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(
            warning_text("299 - \"unknown field \\\"spec.x\\\"\"").as_deref(),
            Some("unknown field \"spec.x\"")
        );
        assert_eq!(warning_text("299"), None);
    }

    #[test]
    fn an_answer_tells_whether_the_object_is_still_there() {
        let options = Value::Null;
        let known = Uid::new("known");
        let delete = Action::Delete { options: &options, uid: Some(&known) };
        let patch = Action::Json(&options);
        let gone = |uid: &str| Fate::Gone(Some(Uid::new(uid)));
        for (action, body, expected) in [
            (delete, r#"{"kind":"Status","details":{"uid":"u"}}"#, gone("u")),
            (delete, r#"{"kind":"Status"}"#, gone("known")),
            (delete, r#"{"kind":"Service","metadata":{"uid":"u"}}"#, gone("u")),
            (
                delete,
                r#"{"kind":"A","metadata":{"uid":"u","deletionTimestamp":"t","finalizers":["f"]}}"#,
                Fate::Alive,
            ),
            (
                delete,
                r#"{"kind":"Pod","metadata":{"uid":"u","deletionTimestamp":"t","deletionGracePeriodSeconds":30}}"#,
                Fate::Alive,
            ),
            (
                patch,
                r#"{"kind":"A","metadata":{"uid":"u","deletionTimestamp":"t","deletionGracePeriodSeconds":0}}"#,
                gone("u"),
            ),
            (
                patch,
                r#"{"kind":"A","metadata":{"uid":"u","deletionTimestamp":"t","finalizers":["f"]}}"#,
                Fate::Alive,
            ),
            (patch, r#"{"kind":"A","metadata":{"uid":"u"}}"#, Fate::Alive),
            (
                Action::Create { body: &options, generate: false },
                r#"{"kind":"SelfSubjectAccessReview"}"#,
                Fate::NeverStored,
            ),
        ] {
            assert_eq!(fate(action, body.as_bytes()), expected, "{body}");
        }
    }
}
