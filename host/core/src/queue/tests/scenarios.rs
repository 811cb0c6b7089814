use super::*;

#[tokio::test(start_paused = true)]
async fn q1_one_push_is_one_run_of_that_key() {
    let queue = open(4);
    queue.push(key("p", "web/a"), now(Reason::Created));
    let ticket = next(&queue).await;
    assert_eq!(*ticket.key(), key("p", "web/a"));
    assert_eq!((ticket.reasons(), ticket.attempt()), (Reason::Created.into(), 1));
    assert_eq!(ticket.settle(Settle::Done), Settled { attempts: 0, stalled: false, next: None });
    assert!(try_next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn q2_many_pushes_while_idle_are_one_run() {
    let queue = open(4);
    for reason in [Reason::Created, Reason::Updated, Reason::Child, Reason::Updated] {
        queue.push(key("p", "a"), now(reason));
    }
    let ticket = next(&queue).await;
    let reasons: Vec<_> = ticket.reasons().iter().collect();
    assert_eq!(reasons, [Reason::Created, Reason::Updated, Reason::Child]);
    ticket.settle(Settle::Done);
    assert!(try_next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn q3_pushes_while_running_are_one_more_run_afterwards() {
    let queue = open(4);
    queue.push(key("p", "a"), now(Reason::Created));
    let ticket = next(&queue).await;
    for _ in 0..5 {
        queue.push(key("p", "a"), now(Reason::Updated));
        assert!(try_next(&queue).await.is_none(), "a second ticket of one key");
    }
    assert_eq!(ticket.settle(Settle::Done).next, Some(Duration::ZERO));
    let again = next(&queue).await;
    assert_eq!(again.reasons(), Reason::Updated.into());
    again.settle(Settle::Done);
    assert!(try_next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn q4_failures_back_off_and_other_keys_go_on() {
    let queue = open(4);
    queue.push(key("p", "bad"), now(Reason::Created));
    for (failures, delay) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32)] {
        let ticket = later(&queue).await;
        assert_eq!(ticket.attempt(), failures);
        let settled = ticket.settle(failed());
        assert_eq!((settled.attempts, settled.stalled), (failures, failures >= 5));
        assert_near(settled.next, seconds(delay));
        queue.push(key("p", "good"), now(Reason::Updated));
        assert_eq!(drain(&queue).await, ["good"]);
    }
}

#[tokio::test(start_paused = true)]
async fn q5_success_and_requeue_after_reset_the_back_off_and_again_does_not() {
    for (settle, attempt) in
        [(Settle::Done, 1), (Settle::After(ms(1)), 1), (Settle::Again(Reason::Conflict), 3)]
    {
        let queue = open(1);
        queue.push(key("p", "a"), now(Reason::Created));
        later(&queue).await.settle(failed());
        later(&queue).await.settle(failed());
        later(&queue).await.settle(settle);
        queue.push(key("p", "a"), now(Reason::Updated));
        assert_eq!(later(&queue).await.attempt(), attempt, "{settle:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn q6_a_permanent_failure_waits_for_the_next_event() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Created));
    let settled = next(&queue).await.settle(Settle::Failed { retry: FailureRetry::Permanent });
    assert_eq!(settled, Settled { attempts: 1, stalled: false, next: None });
    tokio::time::advance(seconds(3600)).await;
    assert!(try_next(&queue).await.is_none());
    queue.push(key("p", "a"), now(Reason::Updated));
    assert_eq!(next(&queue).await.attempt(), 2);
}

#[tokio::test(start_paused = true)]
async fn q7_requeue_after_comes_once_and_not_before() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Created));
    assert_eq!(next(&queue).await.settle(Settle::After(ms(300))).next, Some(ms(300)));
    tokio::time::advance(ms(299)).await;
    assert!(try_next(&queue).await.is_none());
    let before = Instant::now();
    let ticket = later(&queue).await;
    assert_eq!(Instant::now() - before, ms(1));
    assert_eq!((ticket.reasons(), ticket.attempt()), (Reason::Timer.into(), 1));
    ticket.settle(Settle::Done);
    tokio::time::advance(seconds(10)).await;
    assert!(try_next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn q9_of_two_delays_the_sooner_wins() {
    for delays in [[100, 500], [500, 100]] {
        let queue = open(1);
        for delay in delays {
            queue.push(key("p", "a"), now(Reason::Timer).after(ms(delay)));
        }
        let start = Instant::now();
        later(&queue).await.settle(Settle::Done);
        assert_eq!(Instant::now() - start, ms(100));
        tokio::time::advance(seconds(1)).await;
        assert!(try_next(&queue).await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn q10_the_retry_after_of_a_failure_sets_the_delay() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Created));
    let retry = FailureRetry::Transient { retry_after: Some(seconds(42)) };
    let settled = next(&queue).await.settle(Settle::Failed { retry });
    assert_eq!(settled, Settled { attempts: 1, stalled: false, next: Some(seconds(42)) });
    assert_eq!(later(&queue).await.attempt(), 2);
}

#[tokio::test(start_paused = true)]
async fn q11_priority_goes_first_is_raised_never_lowered_and_survives_retries() {
    let queue = open(1);
    let push = |name: &str, priority| queue.push(key("p", name), now(Reason::Updated).priority(priority));
    push("low", Priority::LOW);
    push("normal", Priority::NORMAL);
    push("high", Priority::HIGH);
    assert_eq!(drain(&queue).await, ["high", "normal", "low"]);
    // A raised entry goes to the end of its new level.
    push("a", Priority::LOW);
    push("b", Priority::NORMAL);
    push("a", Priority::NORMAL);
    push("b", Priority::LOW);
    push("c", Priority::LOW);
    assert_eq!(drain(&queue).await, ["b", "a", "c"]);
    push("a", Priority::LOW);
    assert_eq!(next(&queue).await.priority(), Priority::LOW);
    let retry = later(&queue).await;
    assert_eq!((retry.priority(), retry.reasons()), (Priority::LOW, Reason::Retry.into()));
    // A request in the meantime raises the retry.
    push("a", Priority::HIGH);
    retry.settle(failed());
    assert_eq!(next(&queue).await.priority(), Priority::HIGH);
}

#[tokio::test(start_paused = true)]
async fn q12_delayed_keys_are_waiting_not_ready() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Timer).after(seconds(1)));
    queue.push(key("p", "b"), now(Reason::Created));
    let lane = &queue.snapshot()[0];
    assert_eq!((lane.ready, lane.waiting, lane.oldest), (1, 1, Some(Duration::ZERO)));
    tokio::time::advance(seconds(2)).await;
    let lane = &queue.snapshot()[0];
    assert_eq!((lane.ready, lane.waiting, lane.oldest), (2, 0, Some(seconds(2))));
}

#[tokio::test(start_paused = true)]
async fn q13_shutdown_waits_for_tickets_and_ignores_what_comes_later() {
    let queue = open(4);
    queue.push(key("p", "a"), now(Reason::Created));
    queue.push(key("p", "b"), now(Reason::Created));
    let ticket = next(&queue).await;
    next(&queue).await.settle(Settle::Done);
    let mut parked = Box::pin(queue.next());
    assert!(futures::poll!(parked.as_mut()).is_pending());
    queue.shutdown();
    queue.push(key("p", "c"), now(Reason::Created));
    assert!(parked.await.is_none());
    assert!(tokio::time::timeout(seconds(60), queue.drained()).await.is_err());
    assert_eq!(ticket.settle(failed()), Settled { attempts: 1, stalled: false, next: None });
    queue.drained().await;
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn q14_concurrency_is_reached_and_never_exceeded() {
    let queue = open(3);
    for index in 0..10 {
        queue.push(key("p", &format!("a{index}")), now(Reason::Created));
    }
    let mut tickets = vec![next(&queue).await, next(&queue).await, next(&queue).await];
    for _ in 0..7 {
        assert!(try_next(&queue).await.is_none());
        tickets.pop().unwrap().settle(Settle::Done);
        tickets.push(next(&queue).await);
    }
    queue.open(&plugin("p"), config(1));
    queue.push(key("p", "b"), now(Reason::Created));
    while let Some(ticket) = tickets.pop() {
        assert!(try_next(&queue).await.is_none());
        ticket.settle(Settle::Done);
    }
    assert_eq!(drain(&queue).await, ["b"]);
}

/// Complaint 30: an event absorbs a timer, and the timer does not come on top.
#[tokio::test(start_paused = true)]
async fn c30_an_event_absorbs_a_pending_requeue_after() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Created));
    next(&queue).await.settle(Settle::After(seconds(5)));
    queue.push(key("p", "a"), now(Reason::Updated));
    let ticket = next(&queue).await;
    assert_eq!(ticket.reasons(), Reason::Updated.into());
    ticket.settle(Settle::Done);
    tokio::time::advance(seconds(10)).await;
    assert!(try_next(&queue).await.is_none());
    // The same while it runs.
    queue.push(key("p", "a"), now(Reason::Updated));
    let ticket = next(&queue).await;
    queue.push(key("p", "a"), now(Reason::Child));
    assert_eq!(ticket.settle(Settle::After(seconds(5))).next, Some(Duration::ZERO));
    let ticket = next(&queue).await;
    assert_eq!(ticket.reasons(), Reason::Child.into());
    ticket.settle(Settle::Done);
    tokio::time::advance(seconds(10)).await;
    assert!(try_next(&queue).await.is_none());
}

/// Invariant 4: a ticket is never lost.
#[tokio::test(start_paused = true)]
async fn a_dropped_ticket_backs_off_and_comes_back() {
    let queue = open(1);
    queue.push(key("p", "a"), now(Reason::Created));
    drop(next(&queue).await);
    let start = Instant::now();
    let ticket = later(&queue).await;
    assert_eq!((ticket.attempt(), ticket.reasons()), (2, Reason::Retry.into()));
    assert_near(Some(Instant::now() - start), seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_key_is_gone_unless_it_is_pushed_again() {
    let queue = open(1);
    let a = key("p", "a");
    queue.push(a.clone(), now(Reason::Created));
    queue.forget(&a);
    queue.push(a.clone(), now(Reason::Created).after(seconds(1)));
    queue.forget(&a);
    tokio::time::advance(seconds(2)).await;
    assert!(try_next(&queue).await.is_none());
    for settle in [Settle::Done, Settle::After(ms(1)), Settle::Again(Reason::Conflict), failed()] {
        queue.push(a.clone(), now(Reason::Created));
        let ticket = next(&queue).await;
        queue.push(a.clone(), now(Reason::Updated));
        queue.forget(&a);
        assert_eq!(ticket.settle(settle).next, None, "{settle:?}");
    }
    queue.push(a.clone(), now(Reason::Created));
    let ticket = next(&queue).await;
    queue.forget(&a);
    queue.push(a.clone(), now(Reason::Created));
    assert_eq!(ticket.settle(Settle::Done).next, Some(Duration::ZERO));
    assert_eq!(next(&queue).await.attempt(), 1);
}

/// A waiter that is woken or sleeps and is then dropped leaves its part to another one.
#[tokio::test(start_paused = true)]
async fn cancelled_waiters_lose_nothing() {
    let queue = open(8);
    queue.push(key("p", "later"), now(Reason::Timer).after(seconds(60)));
    let mut hasty = Box::pin(queue.next());
    assert!(futures::poll!(hasty.as_mut()).is_pending());
    let mut patient = Box::pin(queue.next());
    assert!(futures::poll!(patient.as_mut()).is_pending());
    // A sooner timer: the one that came first is woken, waits for it, and is dropped.
    queue.push(key("p", "soon"), now(Reason::Timer).after(seconds(1)));
    assert!(futures::poll!(hasty.as_mut()).is_pending());
    drop(hasty);
    let start = Instant::now();
    assert_eq!(patient.await.unwrap().key().name.to_string(), "soon");
    assert_eq!(Instant::now() - start, seconds(1));
    // A push wakes one of two; that one is dropped without having looked.
    let mut first = Box::pin(queue.next());
    let mut second = Box::pin(queue.next());
    assert!(futures::poll!(first.as_mut()).is_pending());
    assert!(futures::poll!(second.as_mut()).is_pending());
    queue.push(key("p", "now"), now(Reason::Created));
    drop(first);
    assert_eq!(second.await.unwrap().key().name.to_string(), "now");
}

/// One push of many keys, several waiters: each gets one.
#[tokio::test(start_paused = true)]
async fn all_waiters_are_served() {
    let queue = open(8);
    let waiters = (0..4).map(|_| queue.next());
    let pushes = async {
        tokio::task::yield_now().await;
        for name in ["a", "b", "c", "d"] {
            queue.push(key("p", name), now(Reason::Timer).after(seconds(1)));
        }
    };
    let (tickets, ()) = futures::join!(futures::future::join_all(waiters), pushes);
    let mut names: Vec<_> = tickets.iter().flatten().map(|ticket| ticket.key().name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d"]);
}
