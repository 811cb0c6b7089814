//! The commonest causes of failures (feature D6): messages with numbers, ids and names masked, so
//! that a thousand objects which fail for one reason are one line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use reeve_core::failure::Failure;
use reeve_core::ids::PluginName;
use reeve_core::queue::Key;

/// So many causes are told apart; a new one takes the place of the one that was seen longest ago.
pub const MAX_CAUSES: usize = 1_000;
/// The most bytes of a template.
const MAX_TEMPLATE: usize = 300;

/// All causes since the host started.
#[derive(Debug, Default)]
pub(super) struct Causes(BTreeMap<(String, String), Cause>);

/// One cause.
#[derive(Debug, Clone)]
pub struct Cause {
    /// The failure's code.
    pub code: String,
    /// The message, masked.
    pub template: String,
    /// How many runs failed like this.
    pub count: u64,
    /// When it was seen first.
    pub first: SystemTime,
    /// When it was seen last.
    pub last: SystemTime,
    /// In which plugins.
    pub plugins: BTreeSet<PluginName>,
}

impl Causes {
    pub(super) fn note(&mut self, key: &Key, failure: &Failure, now: SystemTime) {
        let template = template(key, &failure.message);
        let id = (failure.code.clone(), template.clone());
        if self.0.len() >= MAX_CAUSES
            && !self.0.contains_key(&id)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, cause)| cause.last).map(|(id, _)| id.clone())
        {
            self.0.remove(&oldest);
        }
        let cause = self.0.entry(id).or_insert_with(|| Cause {
            code: failure.code.clone(),
            template,
            count: 0,
            first: now,
            last: now,
            plugins: BTreeSet::new(),
        });
        cause.count += 1;
        cause.last = now;
        if !cause.plugins.contains(&key.plugin) {
            cause.plugins.insert(key.plugin.clone());
        }
    }

    pub(super) fn commonest(&self, limit: usize) -> Vec<Cause> {
        let mut causes: Vec<_> = self.0.values().cloned().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
        causes.truncate(limit);
        causes
    }
}

/// A message without what differs between objects: the object's own name, words with digits or
/// slashes, and what stands in quotes become `*`.
fn template(key: &Key, message: &str) -> String {
    let mut text = String::new();
    for (index, part) in message.split('"').enumerate() {
        if index % 2 == 1 {
            text.push_str("\"*\"");
            continue;
        }
        for word in part.split_inclusive(char::is_whitespace) {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
            let own = bare == &*key.name.name || key.name.namespace.as_deref() == Some(bare);
            let differs = bare.contains(|c: char| c.is_ascii_digit() || c == '/');
            if own || (differs && !bare.is_empty()) {
                text.push_str(&word.replace(bare, "*"));
            } else {
                text.push_str(word);
            }
        }
    }
    let mut end = text.len().min(MAX_TEMPLATE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use reeve_core::ids::ObjectName;

    use super::*;

    fn key(plugin: &str, name: &str) -> Key {
        Key { plugin: plugin.parse().unwrap(), name: ObjectName::namespaced("shop", name) }
    }

    #[test]
    fn what_differs_between_objects_is_masked() {
        for (name, message, masked) in [
            ("cart", "database db-7 did not answer within 30 s", "database * did not answer within * s"),
            ("cart", "ConfigMap shop/cart: field \"a.b\" is wrong", "ConfigMap *: field \"*\" is wrong"),
            ("cart", "cart in shop failed (error 0af3).", "* in * failed (error *)."),
            ("cart", "nothing to mask here", "nothing to mask here"),
        ] {
            assert_eq!(template(&key("p", name), message), masked);
        }
    }

    #[test]
    fn a_thousand_objects_with_one_reason_are_one_cause() {
        let mut causes = Causes::default();
        let at = |second| UNIX_EPOCH + Duration::from_secs(second);
        for number in 0..1_000 {
            let failure = Failure::transient("DB_DOWN", "network", format!("no answer from db-{number}"));
            causes.note(&key(if number % 2 == 0 { "p" } else { "q" }, "x"), &failure, at(number));
        }
        causes.note(&key("p", "x"), &Failure::transient("OTHER", "network", "rare"), at(5_000));
        let commonest = causes.commonest(10);
        assert_eq!(commonest.len(), 2);
        assert_eq!((commonest[0].template.as_str(), commonest[0].count), ("no answer from *", 1_000));
        assert_eq!((commonest[0].first, commonest[0].last), (at(0), at(999)));
        assert_eq!(commonest[0].plugins.len(), 2);
        for number in 0..2 * MAX_CAUSES {
            let failure =
                Failure::transient("X", "network", "word ".repeat(number % 60) + &"a".repeat(number / 60));
            causes.note(&key("p", "x"), &failure, at(6_000 + number as u64));
        }
        assert_eq!(causes.commonest(usize::MAX).len(), MAX_CAUSES);
    }
}
