use std::collections::BTreeMap;

use super::*;

/// Fills lanes, takes and settles `count` tickets, and counts by plugin.
async fn served(queue: &Queue, count: usize) -> BTreeMap<String, usize> {
    let mut served = BTreeMap::new();
    for _ in 0..count {
        let ticket = next(queue).await;
        *served.entry(ticket.key().plugin.to_string()).or_default() += 1;
        ticket.settle(Settle::Done);
    }
    served
}

fn fill(queue: &Queue, plugin_name: &str, count: usize) {
    for index in 0..count {
        queue.push(key(plugin_name, &format!("ns/{index}")), now(Reason::Created));
    }
}

#[tokio::test(start_paused = true)]
async fn plugins_share_by_weight() {
    let queue = queue();
    for (name, weight) in [("one", 1), ("three", 3), ("zero", 0)] {
        queue.open(&plugin(name), LaneConfig { weight, ..config(1) });
        fill(&queue, name, 1_000);
    }
    let served = served(&queue, 500).await;
    assert_eq!((served["one"], served["three"], served["zero"]), (100, 300, 100));
}

#[tokio::test(start_paused = true)]
async fn who_was_idle_gets_its_share_and_no_more() {
    let queue = queue();
    for name in ["busy", "late"] {
        queue.open(&plugin(name), config(1));
    }
    fill(&queue, "busy", 1_000);
    assert_eq!(served(&queue, 500).await["busy"], 500);
    fill(&queue, "late", 1_000);
    let served = served(&queue, 100).await;
    assert!(served["busy"].abs_diff(served["late"]) <= 1, "{served:?}");
}

/// A plugin whose tickets are all out leaves the rest to others.
#[tokio::test(start_paused = true)]
async fn a_full_plugin_slows_only_itself() {
    let queue = queue();
    queue.open(&plugin("stuck"), config(2));
    queue.open(&plugin("other"), config(1));
    fill(&queue, "stuck", 1_000);
    let stuck = [next(&queue).await, next(&queue).await];
    assert!(try_next(&queue).await.is_none());
    fill(&queue, "other", 100);
    assert_eq!(served(&queue, 100).await["other"], 100);
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn namespaces_take_turns_and_each_is_first_in_first_out() {
    let queue = open(1);
    for name in ["noisy/1", "noisy/2", "noisy/3", "noisy/4", "quiet/1", "other/1", "other/2"] {
        queue.push(key("p", name), now(Reason::Created));
    }
    let order = ["noisy/1", "quiet/1", "other/1", "noisy/2", "other/2", "noisy/3", "noisy/4"];
    assert_eq!(drain(&queue).await, order);
}

/// Complaint 8: a flood of live events does not starve the initial list, with the bound that the
/// module states.
#[tokio::test(start_paused = true)]
async fn c8_low_priority_is_never_starved() {
    let queue = open(1);
    let initial = 200;
    for index in 0..initial {
        queue.push(key("p", &format!("ns/low{index}")), now(Reason::Created).priority(Priority::LOW));
    }
    let mut low = Vec::new();
    for ticket_number in 1..=AGEING_EVERY * initial {
        // Live events come faster than they are served.
        for copy in 0..2 {
            let name = format!("ns/live{ticket_number}-{copy}");
            queue.push(key("p", &name), now(Reason::Updated));
        }
        let ticket = next(&queue).await;
        if ticket.priority() == Priority::LOW {
            low.push(ticket.key().name.to_string());
            assert_eq!(ticket_number, AGEING_EVERY * low.len() as u64);
        }
        ticket.settle(Settle::Done);
    }
    let expected: Vec<_> = (0..initial).map(|index| format!("ns/low{index}")).collect();
    assert_eq!(low, expected);
}

/// Complaint 9: a new object does not wait behind the backlog of a restart.
#[tokio::test(start_paused = true)]
async fn c9_a_new_object_overtakes_the_backlog() {
    let queue = open(1);
    for index in 0..10_000 {
        queue.push(key("p", &format!("ns/{index}")), now(Reason::Created).priority(Priority::LOW));
    }
    for _ in 0..6 {
        next(&queue).await.settle(Settle::Done);
    }
    queue.push(key("p", "ns/new"), now(Reason::Created));
    let mut taken = 0;
    loop {
        taken += 1;
        let ticket = next(&queue).await;
        let name = ticket.key().name.to_string();
        ticket.settle(Settle::Done);
        if name == "ns/new" {
            break;
        }
    }
    assert!(taken <= 2, "{taken} tickets");
}
