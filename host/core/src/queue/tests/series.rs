use prometheus::TextEncoder;

use super::*;

fn text(registry: &Registry) -> Vec<String> {
    let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[track_caller]
fn has(registry: &Registry, line: &str) {
    let text = text(registry);
    assert!(text.iter().any(|known| known == line), "no {line} in\n{}", text.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn m1_all_series_are_there_at_0_once_a_lane_is_open() {
    let registry = Registry::new();
    let queue = Queue::with_seed(QueueMetrics::new(&registry).unwrap(), 1);
    assert_eq!(text(&registry), Vec::<String>::new());
    queue.open(&plugin("p"), config(1));
    let lines = text(&registry);
    let buckets = lines.iter().filter(|line| line.contains("_bucket{")).count();
    // Ten decades from 1e-8 to 1e3, and infinity, of two histograms.
    assert_eq!(buckets, 2 * 13);
    let expected = [
        r#"workqueue_adds_total{controller="p",name="p"} 0"#,
        r#"workqueue_depth{controller="p",name="p",priority="-100"} 0"#,
        r#"workqueue_depth{controller="p",name="p",priority="0"} 0"#,
        r#"workqueue_depth{controller="p",name="p",priority="100"} 0"#,
        r#"workqueue_longest_running_processor_seconds{controller="p",name="p"} 0"#,
        r#"workqueue_queue_duration_seconds_sum{controller="p",name="p"} 0"#,
        r#"workqueue_queue_duration_seconds_count{controller="p",name="p"} 0"#,
        r#"workqueue_retries_total{controller="p",name="p"} 0"#,
        r#"workqueue_unfinished_work_seconds{controller="p",name="p"} 0"#,
        r#"workqueue_work_duration_seconds_sum{controller="p",name="p"} 0"#,
        r#"workqueue_work_duration_seconds_count{controller="p",name="p"} 0"#,
    ];
    let rest: Vec<_> = lines.iter().filter(|line| !line.contains("_bucket{")).collect();
    assert_eq!(rest, expected);
    queue.close(&plugin("p"));
    assert_eq!(text(&registry), Vec::<String>::new());
}

/// Q12: the depth counts ready keys only.
#[tokio::test(start_paused = true)]
async fn m2_series_follow_the_work() {
    let registry = Registry::new();
    let queue = Queue::with_seed(QueueMetrics::new(&registry).unwrap(), 1);
    queue.open(&plugin("p"), config(1));
    queue.push(key("p", "a"), now(Reason::Created).priority(Priority::LOW));
    queue.push(key("p", "b"), now(Reason::Timer).after(seconds(9)));
    queue.push(key("p", "c"), now(Reason::Created));
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="-100"} 1"#);
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="0"} 1"#);
    queue.push(key("p", "a"), now(Reason::Updated));
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="-100"} 0"#);
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="0"} 2"#);
    has(&registry, r#"workqueue_adds_total{controller="p",name="p"} 2"#);
    has(&registry, r#"workqueue_retries_total{controller="p",name="p"} 1"#);
    tokio::time::advance(seconds(2)).await;
    let ticket = next(&queue).await;
    has(&registry, r#"workqueue_queue_duration_seconds_sum{controller="p",name="p"} 2"#);
    tokio::time::advance(seconds(3)).await;
    has(&registry, r#"workqueue_unfinished_work_seconds{controller="p",name="p"} 3"#);
    has(&registry, r#"workqueue_longest_running_processor_seconds{controller="p",name="p"} 3"#);
    ticket.settle(failed());
    has(&registry, r#"workqueue_unfinished_work_seconds{controller="p",name="p"} 0"#);
    has(&registry, r#"workqueue_work_duration_seconds_sum{controller="p",name="p"} 3"#);
    has(&registry, r#"workqueue_retries_total{controller="p",name="p"} 2"#);
    tokio::time::advance(seconds(9)).await;
    has(&registry, r#"workqueue_adds_total{controller="p",name="p"} 4"#);
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="0"} 3"#);
    queue.forget(&key("p", "a"));
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="0"} 2"#);
}

#[tokio::test(start_paused = true)]
async fn m3_the_priority_label_is_capped() {
    let registry = Registry::new();
    let queue = Queue::with_seed(QueueMetrics::new(&registry).unwrap(), 1);
    queue.open(&plugin("p"), config(1));
    for priority in 1..=40 {
        queue.push(key("p", &format!("a{priority}")), now(Reason::Created).priority(Priority(priority)));
    }
    let depths = text(&registry).iter().filter(|line| line.starts_with("workqueue_depth")).count();
    assert_eq!(depths, 26);
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="exceeded_cardinality_limit"} 18"#);
    assert_eq!(drain(&queue).await.len(), 40);
    has(&registry, r#"workqueue_depth{controller="p",name="p",priority="exceeded_cardinality_limit"} 0"#);
    queue.close(&plugin("p"));
    assert_eq!(text(&registry), Vec::<String>::new());
}
