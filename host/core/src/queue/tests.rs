//! The queue's scenarios (controllers.md §4, Q1 to Q14), as far as the queue alone decides them.

mod fairness;
mod lanes;
mod model;
mod retries;
mod scenarios;
mod series;

use std::time::Duration;

use prometheus::Registry;

use super::*;
use crate::manifest::OnExhausted;

fn plugin(name: &str) -> PluginName {
    name.parse().unwrap()
}

fn key(plugin_name: &str, name: &str) -> Key {
    let name = match name.split_once('/') {
        Some((namespace, name)) => ObjectName::namespaced(namespace, name),
        None => ObjectName::cluster(name),
    };
    Key { plugin: plugin(plugin_name), name }
}

fn config(concurrency: u32) -> LaneConfig {
    LaneConfig { concurrency, weight: 1, retry: Retry::default() }
}

fn queue() -> Queue {
    Queue::with_seed(QueueMetrics::new(&Registry::new()).unwrap(), 1)
}

/// A queue with the open lane `p`.
fn open(concurrency: u32) -> Queue {
    let queue = queue();
    queue.open(&plugin("p"), config(concurrency));
    queue
}

fn now(reason: Reason) -> Push {
    Push::now(reason)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn failed() -> Settle {
    Settle::Failed { retry: FailureRetry::Transient { retry_after: None } }
}

/// The next ticket if there is one without waiting.
async fn try_next(queue: &Queue) -> Option<Ticket> {
    match futures::poll!(pin!(queue.next())) {
        std::task::Poll::Ready(ticket) => ticket,
        std::task::Poll::Pending => None,
    }
}

async fn next(queue: &Queue) -> Ticket {
    try_next(queue).await.expect("a ticket is ready")
}

/// The next ticket, as soon as there is one.
async fn later(queue: &Queue) -> Ticket {
    let year = Duration::from_hours(365 * 24);
    tokio::time::timeout(year, queue.next()).await.expect("a ticket within a year").expect("no shutdown")
}

/// The names of the tickets that are there, each settled as done before the next is asked for.
async fn drain(queue: &Queue) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(ticket) = try_next(queue).await {
        names.push(ticket.key().name.to_string());
        ticket.settle(Settle::Done);
    }
    names
}

#[track_caller]
fn assert_near(actual: Option<Duration>, expected: Duration) {
    let actual = actual.expect("a delay");
    let range = expected.mul_f64(0.9)..=expected.mul_f64(1.1);
    assert!(range.contains(&actual), "{actual:?} is not {expected:?} ± 10 %");
}
