use super::*;

fn lane(retry: Retry) -> Queue {
    let queue = queue();
    queue.open(&plugin("p"), LaneConfig { retry, ..config(1) });
    queue
}

/// Fails so often that the next failure is the `count + 1`th; the retry is pending.
async fn fail(queue: &Queue, count: u32) -> Settled {
    queue.push(key("p", "a"), now(Reason::Created));
    let mut settled = None;
    for _ in 0..count {
        settled = Some(later(queue).await.settle(failed()));
    }
    settled.expect("one failure")
}

#[tokio::test(start_paused = true)]
async fn delays_double_to_the_cap() {
    let queue = lane(Retry { base_ms: 100, cap_ms: 1_000, ..Retry::default() });
    for (count, delay) in [(1, 100), (1, 200), (1, 400), (1, 800), (1, 1_000), (60, 1_000)] {
        assert_near(fail(&queue, count).await.next, ms(delay));
        let ticket = later(&queue).await;
        queue.push(key("p", "a"), now(Reason::Retry));
        ticket.settle(Settle::Again(Reason::Retry));
    }
}

/// A run that an event causes within the window of a failure neither counts nor moves its end.
#[tokio::test(start_paused = true)]
async fn a_failure_inside_the_back_off_window_does_not_count() {
    let queue = lane(Retry::default());
    let window = fail(&queue, 3).await.next.unwrap();
    let end = Instant::now() + window;
    for _ in 0..10 {
        tokio::time::advance(ms(200)).await;
        queue.push(key("p", "a"), now(Reason::Updated));
        let ticket = next(&queue).await;
        assert_eq!((ticket.attempt(), ticket.reasons()), (4, Reason::Updated.into()));
        let settled = ticket.settle(failed());
        assert_eq!((settled.attempts, settled.next), (3, Some(end - Instant::now())));
    }
    let retry = later(&queue).await;
    assert!(Instant::now() - end < ms(2));
    let settled = retry.settle(failed());
    assert_eq!(settled.attempts, 4);
    assert_near(settled.next, seconds(8));
}

/// An event during the first failing run: the run that follows at once is inside the window.
#[tokio::test(start_paused = true)]
async fn an_event_during_a_failing_run_charges_one_attempt() {
    let queue = lane(Retry::default());
    queue.push(key("p", "a"), now(Reason::Created));
    let ticket = next(&queue).await;
    queue.push(key("p", "a"), now(Reason::Updated));
    assert_eq!(ticket.settle(failed()), Settled { attempts: 1, stalled: false, next: Some(Duration::ZERO) });
    let settled = next(&queue).await.settle(failed());
    assert_eq!(settled.attempts, 1);
    assert_near(settled.next, seconds(1));
}

#[tokio::test(start_paused = true)]
async fn an_outage_backs_off_and_counts_no_attempt() {
    let queue = lane(Retry::default());
    fail(&queue, 2).await;
    for delay in [1, 2, 4, 8, 16, 30, 30] {
        let ticket = later(&queue).await;
        assert_eq!(ticket.attempt(), 3);
        let settled = ticket.settle(Settle::Failed { retry: FailureRetry::Outage });
        assert_eq!((settled.attempts, settled.stalled), (2, false));
        assert_near(settled.next, seconds(delay));
    }
    let settled = later(&queue).await.settle(failed());
    assert_eq!(settled.attempts, 3);
    assert_near(settled.next, seconds(4));
}

#[tokio::test(start_paused = true)]
async fn after_the_last_attempt_it_is_stalled_and_goes_on_slowly_or_stops() {
    let queue = lane(Retry::default());
    let settled = fail(&queue, 5).await;
    assert!(settled.stalled);
    assert_near(settled.next, seconds(16));
    assert_eq!(queue.snapshot()[0].stalled, 1);
    assert!(later(&queue).await.settle(failed()).stalled);
    later(&queue).await.settle(Settle::Done);
    assert_eq!(queue.snapshot()[0].stalled, 0);

    let queue = lane(Retry { on_exhausted: OnExhausted::Stop, ..Retry::default() });
    assert_eq!(fail(&queue, 5).await, Settled { attempts: 5, stalled: true, next: None });
    tokio::time::advance(seconds(3600)).await;
    assert!(try_next(&queue).await.is_none());
    queue.push(key("p", "a"), now(Reason::Updated));
    assert_eq!(next(&queue).await.settle(failed()), Settled { attempts: 6, stalled: true, next: None });
    assert_eq!(queue.snapshot()[0].stalled, 1);
    queue.forget(&key("p", "a"));
    assert_eq!(queue.snapshot()[0].stalled, 0);
}

#[tokio::test(start_paused = true)]
async fn a_swap_and_a_config_change_reset_attempts() {
    for reason in [Reason::Swap, Reason::Config] {
        let queue = lane(Retry::default());
        fail(&queue, 5).await;
        queue.push(key("p", "a"), now(reason).priority(Priority::LOW));
        let ticket = next(&queue).await;
        assert_eq!((ticket.attempt(), ticket.reasons()), (1, reason.into()));
        assert_near(ticket.settle(failed()).next, seconds(1));
    }
    let queue = lane(Retry::default());
    fail(&queue, 5).await;
    queue.open(&plugin("p"), config(1));
    assert_eq!(queue.snapshot()[0].stalled, 0);
    assert_eq!(later(&queue).await.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_wins_also_inside_the_window() {
    let queue = lane(Retry::default());
    fail(&queue, 1).await;
    queue.push(key("p", "a"), now(Reason::Updated));
    let retry = FailureRetry::Transient { retry_after: Some(seconds(7)) };
    let settled = next(&queue).await.settle(Settle::Failed { retry });
    assert_eq!(settled, Settled { attempts: 1, stalled: false, next: Some(seconds(7)) });
}

/// A plugin that says "again at once" with each failure gets no busy loop out of it.
#[tokio::test(start_paused = true)]
async fn a_retry_after_of_nothing_is_no_busy_loop() {
    let queue = lane(Retry::default());
    queue.push(key("p", "a"), now(Reason::Created));
    let retry = FailureRetry::Transient { retry_after: Some(Duration::ZERO) };
    for _ in 0..4 {
        let settled = later(&queue).await.settle(Settle::Failed { retry });
        assert_eq!(settled.next, Some(Duration::from_millis(100)));
    }
    // From the fifth on it is stalled, and the back-off goes on doubling.
    for seconds_of_back_off in [16, 32, 64] {
        assert_near(later(&queue).await.settle(Settle::Failed { retry }).next, seconds(seconds_of_back_off));
    }
}

#[tokio::test(start_paused = true)]
async fn no_delay_overflows() {
    let queue = lane(Retry { base_ms: u64::MAX, cap_ms: u64::MAX, ..Retry::default() });
    queue.push(key("p", "a"), now(Reason::Created));
    let retry = FailureRetry::Transient { retry_after: Some(Duration::MAX) };
    assert_eq!(next(&queue).await.settle(Settle::Failed { retry }).next, Some(MAX_DELAY));
    queue.push(key("p", "b"), now(Reason::Timer).after(Duration::MAX));
    queue.push(key("p", "c"), now(Reason::Created));
    assert_near(next(&queue).await.settle(failed()).next, MAX_DELAY);
    queue.push(key("p", "d"), now(Reason::Created));
    assert_eq!(next(&queue).await.settle(Settle::After(Duration::MAX)).next, Some(MAX_DELAY));
}

/// Keys that failed together do not come back together.
#[tokio::test(start_paused = true)]
async fn back_off_has_jitter_within_ten_percent() {
    let queue = queue();
    queue.open(&plugin("p"), config(100));
    let mut delays = Vec::new();
    for index in 0..100 {
        queue.push(key("p", &format!("a{index}")), now(Reason::Created));
        let settled = next(&queue).await.settle(failed());
        assert_near(settled.next, seconds(1));
        delays.extend(settled.next);
    }
    delays.sort();
    assert!(delays[99].abs_diff(delays[0]) > ms(150), "from {:?} to {:?}", delays[0], delays[99]);
}

/// A run that could not begin says nothing of the object.
#[tokio::test(start_paused = true)]
async fn a_hold_keeps_reasons_and_attempts() {
    let queue = lane(Retry::default());
    fail(&queue, 2).await;
    queue.push(key("p", "a"), now(Reason::Child).priority(Priority::HIGH));
    let settled = next(&queue).await.settle(Settle::Hold(ms(500)));
    assert_eq!(settled, Settled { attempts: 2, stalled: false, next: Some(ms(500)) });
    let ticket = later(&queue).await;
    let seen = (ticket.attempt(), ticket.reasons(), ticket.priority());
    assert_eq!(seen, (3, Reason::Child.into(), Priority::HIGH));
}
