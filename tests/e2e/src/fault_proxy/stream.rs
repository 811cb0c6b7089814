//! Bodies on their way to the client: a watch, event by event, or any other body.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::filter::RequestLine;
use super::log::Writer;
use super::rule::{Action, Active, status_object};

/// The body of every answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The rules in force, replaced as a whole.
pub(super) type Rules = Arc<Vec<Arc<Active>>>;

/// Events that a stream holds back at most; beyond it, it stops reading from the server.
const MAX_HELD: usize = 100_000;

/// A watch on its way through.
pub(super) struct Watch {
    upstream: Option<Incoming>,
    /// Whether the body is JSON lines; of others each frame counts as an event.
    framed: bool,
    line: RequestLine,
    number: u64,
    log: Writer,
    rules: watch::Receiver<Rules>,
    effects: Vec<Effect>,
    partial: BytesMut,
    held: VecDeque<(Instant, Bytes)>,
    delivered: u64,
    ended: bool,
}

/// A rule that holds for a stream.
struct Effect {
    rule: Arc<Active>,
    /// How many events had been delivered when it began to hold.
    from: u64,
    done: bool,
}

/// Faults on a body that is no watch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) slow: Option<(usize, Duration)>,
    pub(super) cut_after: Option<usize>,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(
        upstream: Incoming,
        framed: bool,
        line: RequestLine,
        number: u64,
        log: Writer,
        rules: watch::Receiver<Rules>,
    ) -> Self {
        Self {
            upstream: Some(upstream),
            framed,
            line,
            number,
            log,
            rules,
            effects: Vec::new(),
            partial: BytesMut::new(),
            held: VecDeque::new(),
            delivered: 0,
            ended: false,
        }
    }

    pub(super) fn into_body(mut self) -> Body {
        self.rules.mark_changed();
        let frames = futures::stream::unfold(self, |mut watch| async move {
            let next = watch.next().await?;
            Some((next.map(Frame::data), watch))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.rules.has_changed().unwrap_or(false) {
                self.take_rules();
            }
            if self.ended {
                return None;
            }
            if let Some(line) = self.triggered() {
                return Some(Ok(self.deliver(line, false)));
            }
            if self.ended {
                return None;
            }
            let paused =
                self.effects.iter().any(|effect| !effect.done && effect.rule.rule.action == Action::Pause);
            let due = if paused { None } else { self.held.front().map(|(due, _)| *due) };
            if due.is_some_and(|due| due <= Instant::now())
                && let Some((_, line)) = self.held.pop_front()
            {
                return Some(Ok(self.deliver(line, true)));
            }
            if self.upstream.is_none() && self.held.is_empty() && !paused {
                return None;
            }
            let reading = self.held.len() < MAX_HELD;
            tokio::select! {
                changed = self.rules.changed() => {
                    changed.ok()?;
                    self.take_rules();
                }
                () = sleep_until(due) => {}
                frame = read(&mut self.upstream), if reading && self.upstream.is_some() => match frame {
                    Some(Ok(bytes)) => self.take_bytes(&bytes),
                    // The server went away in the middle: so do we.
                    Some(Err(error)) => {
                        self.log.lost();
                        return Some(Err(error));
                    }
                    None => self.upstream = None,
                },
            }
        }
    }

    /// Brings the effects in line with the rules in force.
    fn take_rules(&mut self) {
        let rules = Arc::clone(&self.rules.borrow_and_update());
        self.effects.retain(|effect| rules.iter().any(|active| active.id == effect.rule.id));
        for active in rules.iter() {
            let known = self.effects.iter().any(|effect| effect.rule.id == active.id);
            let meant = active.rule.action.is_on_stream()
                && active.rule.filter.matches(&self.line)
                && (active.rule.action != Action::CutOpen || self.number < active.since);
            if meant && !known {
                let done = !active.admit();
                self.effects.push(Effect { rule: Arc::clone(active), from: self.delivered, done });
            }
        }
    }

    /// What an effect has to say at this point of the stream, and whether the stream ends with it.
    fn triggered(&mut self) -> Option<Bytes> {
        for effect in &mut self.effects {
            let delivered = self.delivered - effect.from;
            match &effect.rule.rule.action {
                _ if effect.done => {}
                Action::CutOpen => {
                    self.ended = true;
                    return None;
                }
                Action::Cut { after } if delivered >= *after => {
                    self.ended = true;
                    return None;
                }
                Action::WatchError { after, code } if delivered >= *after => {
                    self.ended = true;
                    let status = status_object(*code, None, None, None, None);
                    let line = serde_json::json!({ "type": "ERROR", "object": status });
                    return Some(format!("{line}\n").into());
                }
                Action::Inject { after, line } if delivered >= *after => {
                    effect.done = true;
                    return Some(format!("{line}\n").into());
                }
                _ => {}
            }
        }
        None
    }

    fn take_bytes(&mut self, bytes: &Bytes) {
        if !self.framed {
            self.hold(bytes.clone());
            return;
        }
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line = self.partial.split_to(end + 1).freeze();
            self.hold(line);
        }
    }

    fn hold(&mut self, line: Bytes) {
        let on = |wanted: fn(&Action) -> Option<u64>| {
            self.effects
                .iter()
                .filter(|effect| !effect.done)
                .filter_map(|effect| wanted(&effect.rule.rule.action))
                .max()
        };
        let strips = on(|action| matches!(action, Action::StripBookmarks).then_some(0)).is_some();
        if strips && is_bookmark(&line) {
            return;
        }
        let shift =
            on(|action| if let Action::Shift { ms } = action { Some(*ms) } else { None }).unwrap_or(0);
        self.held.push_back((Instant::now() + Duration::from_millis(shift), line));
    }

    fn deliver(&mut self, line: Bytes, counts: bool) -> Bytes {
        if counts {
            self.delivered += 1;
            self.log.event();
        }
        self.log.delivered(line.len());
        line
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The next bytes of a body; `None` at its end.
async fn read(body: &mut Option<Incoming>) -> Option<io::Result<Bytes>> {
    let body = body.as_mut()?;
    loop {
        match body.frame().await? {
            Ok(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Some(Ok(bytes));
                }
            }
            Err(error) => return Some(Err(io::Error::other(error))),
        }
    }
}

fn is_bookmark(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(rename = "type", borrow)]
        kind: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Event<'_>>(line).is_ok_and(|event| event.kind == "BOOKMARK")
}

/// Passes a body on, counted, with its faults.
pub(super) fn pass(upstream: Incoming, faults: Faults, log: Writer) -> Body {
    struct Pass {
        upstream: Option<Incoming>,
        waiting: Bytes,
        left: usize,
        log: Writer,
    }
    let piece = faults.slow.map_or(usize::MAX, |(bytes, _)| bytes.max(1));
    let pass = Pass {
        upstream: Some(upstream),
        waiting: Bytes::new(),
        left: faults.cut_after.unwrap_or(usize::MAX),
        log,
    };
    let frames = futures::stream::unfold(pass, move |mut pass| async move {
        if pass.waiting.is_empty() {
            match read(&mut pass.upstream).await? {
                Ok(bytes) => pass.waiting = bytes,
                Err(error) => {
                    pass.log.lost();
                    return Some((Err(error), pass));
                }
            }
        }
        if pass.left == 0 {
            pass.log.lost();
            return Some((Err(io::Error::other("cut by a fault rule")), pass));
        }
        if let Some((_, pause)) = faults.slow {
            tokio::time::sleep(pause).await;
        }
        let bytes = pass.waiting.split_to(pass.waiting.len().min(piece).min(pass.left));
        pass.left = pass.left.saturating_sub(bytes.len());
        pass.log.delivered(bytes.len());
        Some((Ok(Frame::data(bytes)), pass))
    });
    StreamBody::new(frames).boxed_unsync()
}
