//! The filters of `list-objects`.

use reeve_core::failure::{Failure, code};
use reeve_core::ids::Uid;
use reeve_core::read::Query;

use crate::config::MAX_FILTERS;

/// Reads filters; each at most once, and one that the host does not know is refused by name.
pub(crate) fn query(filters: &[(String, String)]) -> Result<Query, Failure> {
    let size: usize = filters.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_FILTERS {
        return Err(refused(format!(
            "the filters have {size} bytes, more than {MAX_FILTERS}: use fewer or shorter ones"
        )));
    }
    let mut query = Query::default();
    for (key, value) in filters {
        let twice = match key.as_str() {
            "namespace" => query.namespace.replace(value.as_str().into()).is_some(),
            "labels" => {
                let selector = value.parse().map_err(|error| {
                    refused(format!("filter `labels` = {value:?} is no selector: {error}"))
                })?;
                query.labels.replace(selector).is_some()
            }
            "owner" => query.owner.replace(Uid::new(value)).is_some(),
            _ => match key.strip_prefix("index:") {
                Some(index) => query.index.replace((index.into(), value.as_str().into())).is_some(),
                None => {
                    return Err(refused(format!(
                        "there is no filter `{key}`: use `namespace`, `labels`, `owner` or `index:<name>`; \
                         a later one needs a newer host"
                    )));
                }
            },
        };
        if twice {
            return Err(refused(format!("filter `{key}` is given twice: give each kind of filter once")));
        }
    }
    Ok(query)
}

fn refused(message: String) -> Failure {
    Failure::permanent(code::INVALID_ARGUMENT, "validation", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(pairs: &[(&str, &str)]) -> Result<Query, Failure> {
        let owned: Vec<_> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        query(&owned)
    }

    #[test]
    fn all_filters_are_read() {
        let query =
            filters(&[("namespace", "web"), ("labels", "a=b"), ("owner", "u-1"), ("index:by-host", "x")]);
        let expected = Query {
            namespace: Some("web".into()),
            labels: "a=b".parse().ok(),
            owner: Some(Uid::new("u-1")),
            index: Some(("by-host".into(), "x".into())),
        };
        assert_eq!(query, Ok(expected));
        assert_eq!(filters(&[]), Ok(Query::default()));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let long = "x".repeat(MAX_FILTERS);
        for (pairs, part) in [
            (&[("owner", long.as_str())][..], "bytes"),
            (&[("fields", "a=b")][..], "`fields`"),
            (&[("", "")][..], "``"),
            (&[("labels", "a in (")][..], "`labels`"),
            (&[("owner", "a"), ("owner", "b")][..], "`owner` is given twice"),
            (&[("index:a", "1"), ("index:b", "2")][..], "`index:b` is given twice"),
        ] {
            let failure = filters(pairs).expect_err(part);
            assert!(failure.message.contains(part), "{}", failure.message);
            assert_eq!((failure.code.as_str(), failure.transient), (code::INVALID_ARGUMENT, false));
        }
    }
}
