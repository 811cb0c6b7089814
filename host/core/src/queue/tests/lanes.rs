use super::*;

#[tokio::test(start_paused = true)]
async fn a_key_without_a_lane_is_ignored() {
    let queue = open(1);
    queue.push(key("q", "a"), now(Reason::Created));
    queue.forget(&key("q", "a"));
    queue.close(&plugin("q"));
    assert!(try_next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn closing_drops_entries_and_timers_and_tickets_settle_harmlessly() {
    let queue = open(4);
    queue.push(key("p", "work"), now(Reason::Created));
    let ticket = next(&queue).await;
    queue.push(key("p", "ready"), now(Reason::Created));
    queue.push(key("p", "waiting"), now(Reason::Timer).after(seconds(1)));
    queue.push(key("p", "work"), now(Reason::Updated));
    queue.close(&plugin("p"));
    queue.push(key("p", "late"), now(Reason::Created));
    assert_eq!(queue.snapshot(), []);
    tokio::time::advance(seconds(2)).await;
    assert!(try_next(&queue).await.is_none());
    assert_eq!(ticket.settle(failed()).next, None);
    queue.drained().await;
    queue.open(&plugin("p"), config(4));
    tokio::time::advance(seconds(10)).await;
    assert!(try_next(&queue).await.is_none());
}

/// Invariant 3: never twice at once, also across versions of a plugin.
#[tokio::test(start_paused = true)]
async fn a_key_in_work_stays_locked_over_close_and_open() {
    let queue = open(4);
    queue.push(key("p", "a"), now(Reason::Created));
    let old = next(&queue).await;
    queue.close(&plugin("p"));
    queue.open(&plugin("p"), config(4));
    queue.push(key("p", "a"), now(Reason::Swap));
    queue.push(key("p", "b"), now(Reason::Swap));
    assert_eq!(drain(&queue).await, ["b"]);
    assert_eq!(old.settle(Settle::Done).next, Some(Duration::ZERO));
    assert_eq!(drain(&queue).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_of_concurrency_0_is_paused() {
    let queue = open(0);
    queue.push(key("p", "a"), now(Reason::Created));
    assert!(try_next(&queue).await.is_none());
    queue.open(&plugin("p"), config(1));
    assert_eq!(drain(&queue).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_says_where_keys_are() {
    let queue = open(1);
    queue.open(&plugin("a"), config(1));
    for (name, push) in [
        ("one", now(Reason::Created)),
        ("two", now(Reason::Created)),
        ("three", now(Reason::Timer).after(seconds(9))),
    ] {
        queue.push(key("p", name), push);
    }
    let ticket = next(&queue).await;
    tokio::time::advance(seconds(3)).await;
    let lane = |plugin_name, ready, waiting, in_work, oldest| LaneSnapshot {
        plugin: plugin(plugin_name),
        ready,
        waiting,
        in_work,
        oldest,
        stalled: 0,
    };
    assert_eq!(queue.snapshot(), [lane("a", 0, 0, 0, None), lane("p", 1, 1, 1, Some(seconds(3)))]);
    assert_eq!(ticket.waited(), Duration::ZERO);
    ticket.settle(Settle::Done);
    assert_eq!(next(&queue).await.waited(), seconds(3));
}
