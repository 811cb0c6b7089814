//! What a plugin leaves behind when it goes: finalizers that nobody will remove (feature C6).

use reeve_core::read::Query;

use super::Notices;
use crate::metrics::Metrics;
use crate::roster::Registration;

/// So many objects are named in the log and told by an event; the metric counts all.
const NAMED: usize = 10;

/// Reports the finalizers that a version leaves on its primaries.
pub(super) fn report(metrics: &Metrics, notices: &Notices, old: &Registration, why: &str) {
    let plugin = old.name();
    let finalizer = plugin.field_manager();
    let Ok(list) = old.reader.list(&old.primary, &Query::default()) else { return };
    let held: Vec<_> = list.iter().filter(|object| object.meta().has_finalizer(&finalizer)).collect();
    let count = i64::try_from(held.len()).unwrap_or(i64::MAX);
    metrics.finalizers_held.with_label_values(&[plugin.as_str()]).set(count);
    if held.is_empty() {
        return;
    }
    let note = format!(
        "finalizer {finalizer} stays, because plugin {plugin} is out of service ({why}); bring it back, or remove the finalizer by hand"
    );
    for object in held.iter().take(NAMED) {
        notices.finalizer_left(&old.primary, object, &note);
    }
    let names: Vec<_> = held.iter().take(NAMED).map(|object| object.meta().name.to_string()).collect();
    tracing::warn!(
        %plugin, kind = %old.primary, objects = held.len(), names = names.join(", "), why,
        "finalizer {finalizer} stays on these objects, which cannot be deleted before it goes: bring the plugin back, or remove the finalizer by hand"
    );
}
