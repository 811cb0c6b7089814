//! All objects of a plugin at once: after a swap, when a map queue overflowed, and as resync.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use reeve_core::ids::PluginName;
use reeve_core::queue::{Key, Priority, Push, Queue};
use reeve_core::read::Query;
use reeve_core::reason::Reason;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::roster::{Registration, SharedRoster};

/// Objects a second that a swap queues. With most of them unchanged they cost no request, and
/// 10,000 objects have seen the new version after 50 s.
pub(crate) const SWAP_RATE: u32 = 200;
/// A plugin's objects are looked at this many times per resync interval, within the two bounds below.
const RESYNC_STEPS: u32 = 50;
/// The bounds of the step.
const RESYNC_STEP: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// How often it is looked whose step has passed. The shortest interval that a manifest can have is
/// one second.
const RESYNC_LOOK: Duration = Duration::from_millis(200);

/// Queues every primary of a plugin at low priority, at most `rate` a second where given. Says how
/// many there are; none while the kind is not synced (then they come as they are listed).
pub(crate) fn all(queue: &Queue, registration: &Registration, reason: Reason, rate: Option<u32>) -> usize {
    let Ok(list) = registration.reader.list(&registration.primary, &Query::default()) else { return 0 };
    for (index, object) in (0_u32..).zip(list.iter()) {
        let after = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(1) * index / rate);
        let key = Key { plugin: registration.name().clone(), name: object.meta().name.clone() };
        queue.push(key, Push { after, priority: Priority::LOW, reason });
    }
    list.len()
}

/// Runs each object again when the resync interval of its plugin has passed, give or take 10 %.
///
/// Nothing is kept per object: its period follows from its name, and its moments are the multiples
/// of that period since the version began to serve.
pub(crate) async fn resync(queue: Queue, roster: SharedRoster, shutdown: CancellationToken) {
    let mut seen: HashMap<PluginName, (u64, Instant, Instant)> = HashMap::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RESYNC_LOOK) => {}
        }
        let roster = roster.load_full();
        let now = Instant::now();
        seen.retain(|plugin, _| roster.serving(plugin).is_some());
        for registration in roster.all_serving() {
            let interval = registration.manifest().resync;
            let (number, start, last) =
                seen.entry(registration.name().clone()).or_insert((registration.number, now, now));
            if *number != registration.number {
                (*number, *start) = (registration.number, now);
            }
            if !interval.is_zero() && now.duration_since(*last) >= step(interval) {
                due(&queue, registration, interval, *start, (*last, now));
                *last = now;
            }
        }
    }
}

fn step(interval: Duration) -> Duration {
    (interval / RESYNC_STEPS).clamp(RESYNC_STEP.0, RESYNC_STEP.1)
}

fn due(
    queue: &Queue,
    registration: &Registration,
    interval: Duration,
    start: Instant,
    (last, now): (Instant, Instant),
) {
    // Before the first possible moment there is nothing to look at.
    if now.duration_since(start) < interval * 9 / 10 {
        return;
    }
    let Ok(objects) = registration.reader.list(&registration.primary, &Query::default()) else { return };
    for object in objects.iter() {
        let name = &object.meta().name;
        let period = period(interval, name);
        let count =
            |moment: Instant| moment.saturating_duration_since(start).as_nanos() / period.as_nanos().max(1);
        if count(now) > count(last) {
            let key = Key { plugin: registration.name().clone(), name: name.clone() };
            queue.push(key, Push::now(Reason::Resync).priority(Priority::LOW));
        }
    }
}

/// 90 to 110 % of the interval, by the name.
fn period(interval: Duration, name: &reeve_core::ids::ObjectName) -> Duration {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let thousandth = u32::try_from(hasher.finish() % 201).unwrap_or(0);
    interval * (900 + thousandth) / 1_000
}

#[cfg(test)]
mod tests {
    use reeve_core::ids::ObjectName;

    use super::*;

    #[test]
    fn periods_spread_over_a_fifth_of_the_interval() {
        let interval = Duration::from_secs(1_000);
        let periods: Vec<_> =
            (0..1_000).map(|n| period(interval, &ObjectName::cluster(&n.to_string()))).collect();
        assert!(periods.iter().all(|period| (900..=1_100).contains(&period.as_secs())));
        assert!(
            periods.iter().min().unwrap().as_secs() < 910 && periods.iter().max().unwrap().as_secs() > 1_090
        );
    }

    #[test]
    fn the_step_follows_the_interval() {
        let second = Duration::from_secs(1);
        assert_eq!(step(second), RESYNC_STEP.0);
        assert_eq!(step(second * 36_000), RESYNC_STEP.1);
        assert_eq!(step(second * 100), second * 2);
    }
}
