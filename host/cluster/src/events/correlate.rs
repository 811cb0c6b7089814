//! Which events are sent, counted or dropped: pure, driven by the caller's clock.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use reeve_core::gvk::GroupKind;
use reeve_core::ids::{ObjectName, PluginName, Uid};
use reeve_core::plan::Event;
use tokio::time::Instant;

use super::Emission;

/// Events of one object that may come at once; client-go's spam filter has the same.
const BURST: f64 = 25.0;
/// How often one more may come after that; client-go's spam filter has the same.
const REFILL: Duration = Duration::from_mins(5);
/// An event over the limit waits this long for a later one that makes it obsolete...
const QUIET: Duration = Duration::from_secs(2);
/// ...but it goes at the latest after this, so that a flood shows its latest state now and then.
const LONGEST_HELD: Duration = Duration::from_secs(30);
/// The first update of a series comes after this, the next after twice that, up to [`SERIES_END`].
const FIRST_FLUSH: Duration = Duration::from_secs(5);
/// A series ends when its event did not come for so long; client-go has the same.
const SERIES_END: Duration = Duration::from_mins(6);
/// Series and objects that are remembered. Beyond it the least recently used are forgotten: then a
/// repeated event is a new one, and an object has its burst again.
const REMEMBERED: usize = 4_096;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Order {
    /// Send it as a new event of this name.
    Create { name: ObjectName, emission: Emission },
    /// Set the count of the series of this name.
    Count { name: ObjectName, count: u32, emission: Emission },
    /// It only raised a count.
    Merged(Emission),
    /// It was over the limit, and a later one took its place.
    Drop(Emission),
}

/// Remembers what was sent.
#[derive(Default)]
pub(super) struct Correlator {
    serial: u64,
    series: HashMap<SeriesKey, Series>,
    objects: HashMap<ObjectKey, Limit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ObjectKey {
    plugin: Option<PluginName>,
    kind: GroupKind,
    name: ObjectName,
    uid: Option<Uid>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SeriesKey {
    object: ObjectKey,
    event: Event,
}

struct Series {
    name: ObjectName,
    count: u32,
    /// The count that the server has.
    told: u32,
    latest: Emission,
    seen: Instant,
    /// When to tell the count, and how long to wait the next time.
    flush: Option<Instant>,
    delay: Duration,
}

struct Limit {
    tokens: f64,
    refilled: Instant,
    held: Option<Held>,
}

struct Held {
    emission: Emission,
    since: Instant,
    until: Instant,
}

// === impl Correlator ===

impl Correlator {
    /// Takes an event in.
    pub(super) fn take(&mut self, emission: Emission, now: Instant) -> Vec<Order> {
        self.tidy(now);
        let object = object_key(&emission);
        let key = SeriesKey { object: object.clone(), event: emission.event.clone() };
        if let Some(series) = self.series.get_mut(&key).filter(|series| now - series.seen < SERIES_END) {
            series.count += 1;
            series.seen = now;
            series.latest = emission.clone();
            let delay = series.delay;
            series.flush.get_or_insert(now + delay);
            return vec![Order::Merged(emission)];
        }
        let limit = self.objects.entry(object).or_insert(Limit { tokens: BURST, refilled: now, held: None });
        limit.refill(now);
        if limit.tokens >= 1.0 && limit.held.is_none() {
            limit.tokens -= 1.0;
            return vec![self.begin(emission, now)];
        }
        let since = limit.held.as_ref().map_or(now, |held| held.since);
        let until = (now + QUIET).min(since + LONGEST_HELD);
        let before = limit.held.replace(Held { emission, since, until });
        before.map(|held| Order::Drop(held.emission)).into_iter().collect()
    }

    /// When something is due without a new event.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let flushes = self.series.values().filter_map(|series| series.flush);
        let held = self.objects.values().filter_map(|limit| limit.held.as_ref().map(|held| held.until));
        flushes.chain(held).min()
    }

    /// What is due now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Order> {
        self.ready(now, |due| due <= now)
    }

    /// All that still waits.
    pub(super) fn flush(&mut self) -> Vec<Order> {
        self.ready(Instant::now(), |_| true)
    }

    /// The server does not know the event of this series any more.
    pub(super) fn forget(&mut self, emission: &Emission) {
        self.series.remove(&SeriesKey { object: object_key(emission), event: emission.event.clone() });
    }

    fn ready(&mut self, now: Instant, is_due: impl Fn(Instant) -> bool) -> Vec<Order> {
        let mut orders: Vec<Order> = Vec::new();
        for series in self.series.values_mut().filter(|series| series.flush.is_some_and(&is_due)) {
            series.flush = None;
            series.delay = (series.delay * 2).min(SERIES_END);
            series.told = series.count;
            orders.push(Order::Count {
                name: series.name.clone(),
                count: series.count,
                emission: series.latest.clone(),
            });
        }
        let released: Vec<Emission> = self
            .objects
            .values_mut()
            .filter(|limit| limit.held.as_ref().is_some_and(|held| is_due(held.until)))
            .filter_map(|limit| limit.held.take())
            .map(|held| held.emission)
            .collect();
        orders.extend(released.into_iter().map(|emission| self.begin(emission, now)));
        orders
    }

    /// The first event of what may become a series.
    fn begin(&mut self, emission: Emission, now: Instant) -> Order {
        self.serial += 1;
        let regarding = &emission.regarding.name;
        let stamp = u64::try_from(emission.at.as_nanosecond()).unwrap_or_default().wrapping_add(self.serial);
        // A name is at most 253 bytes; the suffix has 17.
        let base = super::cut(&regarding.name, 230).trim_end_matches(['.', '-']);
        let name = ObjectName {
            // An event about a cluster-scoped object lives in `default`, as client-go's do.
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".into())),
            name: format!("{base}.{stamp:016x}").into(),
        };
        let key = SeriesKey { object: object_key(&emission), event: emission.event.clone() };
        let series = Series {
            name: name.clone(),
            count: 1,
            told: 1,
            latest: emission.clone(),
            seen: now,
            flush: None,
            delay: FIRST_FLUSH,
        };
        self.series.insert(key, series);
        Order::Create { name, emission }
    }

    fn tidy(&mut self, now: Instant) {
        if self.series.len() >= REMEMBERED {
            self.series.retain(|_, series| now - series.seen < SERIES_END);
            halve(&mut self.series, |series| series.seen);
        }
        if self.objects.len() >= REMEMBERED {
            halve(&mut self.objects, |limit| limit.refilled);
        }
    }
}

/// Forgets the older half of a map that is at its bound.
fn halve<K: Eq + Hash, V>(map: &mut HashMap<K, V>, age: impl Fn(&V) -> Instant) {
    if map.len() < REMEMBERED {
        return;
    }
    let mut ages: Vec<Instant> = map.values().map(&age).collect();
    let middle = ages.len() / 2;
    let median = *ages.select_nth_unstable(middle).1;
    map.retain(|_, value| age(value) > median);
}

impl Limit {
    fn refill(&mut self, now: Instant) {
        let gained = (now - self.refilled).as_secs_f64() / REFILL.as_secs_f64();
        self.tokens = (self.tokens + gained).min(BURST);
        self.refilled = now;
    }
}

fn object_key(emission: &Emission) -> ObjectKey {
    ObjectKey {
        plugin: emission.plugin.clone(),
        kind: emission.regarding.gvk.group_kind(),
        name: emission.regarding.name.clone(),
        uid: emission.regarding.uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use reeve_core::gvk::Gvk;
    use reeve_core::leading::Leading;

    use super::super::Regarding;
    use super::*;

    fn emission(object: &str, note: &str) -> Emission {
        Emission {
            leading: Leading::solo(),
            plugin: "web".parse().ok(),
            regarding: Regarding {
                gvk: Gvk::new("a", "v1", "A"),
                name: ObjectName::namespaced("n", object),
                uid: Some(Uid::new(object)),
                version: None,
            },
            event: Event {
                warning: false,
                reason: "R".to_owned(),
                action: "A".to_owned(),
                note: note.to_owned(),
            },
            at: Timestamp::now(),
        }
    }

    #[derive(Default, Debug, PartialEq)]
    struct Tally {
        created: Vec<String>,
        counts: Vec<u32>,
        merged: u32,
        dropped: u32,
    }

    impl Tally {
        fn add(&mut self, orders: Vec<Order>) {
            for order in orders {
                match order {
                    Order::Create { emission, .. } => self.created.push(emission.event.note),
                    Order::Count { count, .. } => self.counts.push(count),
                    Order::Merged(_) => self.merged += 1,
                    Order::Drop(_) => self.dropped += 1,
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_limited_and_its_last_event_gets_through() {
        let mut correlator = Correlator::default();
        let mut tally = Tally::default();
        let start = Instant::now();
        for index in 0..100 {
            tally.add(correlator.take(emission("o", &index.to_string()), start));
        }
        assert_eq!((tally.created.len(), tally.dropped), (25, 74));
        assert_eq!(correlator.next_due(), Some(start + QUIET));
        tally.add(correlator.due(start + QUIET));
        assert_eq!(tally.created.last().map(String::as_str), Some("99"));
        assert_eq!((tally.created.len(), tally.dropped), (26, 74));
        // Another object has its own burst.
        tally.add(correlator.take(emission("p", "x"), start));
        assert_eq!(tally.created.len(), 27);
        // After the refill one more gets through at once.
        tally.add(correlator.take(emission("o", "later"), start + REFILL));
        assert_eq!(tally.created.last().map(String::as_str), Some("later"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_without_end_shows_its_state_now_and_then() {
        let mut correlator = Correlator::default();
        let mut tally = Tally::default();
        let start = Instant::now();
        for second in 0..=120u32 {
            let now = start + Duration::from_secs(second.into());
            tally.add(correlator.due(now));
            tally.add(correlator.take(emission("o", &second.to_string()), now));
        }
        let late = tally.created.len() - 25;
        assert!((2..=4).contains(&late), "{late} of the flood got through");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_one_series() {
        let mut correlator = Correlator::default();
        let mut tally = Tally::default();
        let start = Instant::now();
        for _ in 0..10_000 {
            tally.add(correlator.take(emission("o", "same"), start));
        }
        assert_eq!((tally.created.len(), tally.merged, tally.dropped), (1, 9_999, 0));
        assert_eq!(correlator.next_due(), Some(start + FIRST_FLUSH));
        tally.add(correlator.due(start + FIRST_FLUSH));
        assert_eq!(tally.counts, [10_000]);
        assert_eq!(correlator.next_due(), None);
        // The next count comes later, and a pause ends the series.
        let again = start + FIRST_FLUSH;
        tally.add(correlator.take(emission("o", "same"), again));
        assert_eq!(correlator.next_due(), Some(again + FIRST_FLUSH * 2));
        tally.add(correlator.take(emission("o", "same"), again + SERIES_END));
        assert_eq!(tally.created.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        let start = Instant::now();
        for index in 0..REMEMBERED + 10 {
            let now = start + Duration::from_millis(index as u64);
            correlator.take(emission(&index.to_string(), "x"), now);
        }
        assert!(correlator.series.len() <= REMEMBERED && correlator.objects.len() <= REMEMBERED);
        let newest = SeriesKey {
            object: object_key(&emission(&(REMEMBERED + 9).to_string(), "x")),
            event: emission("o", "x").event,
        };
        assert!(correlator.series.contains_key(&newest));
    }
}
