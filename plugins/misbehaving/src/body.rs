//! What a guest does to its own instance and to the host's patience.

use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use reeve_sdk::log::{self, Level};
use reeve_sdk::prelude::*;

/// Whether the mode was one of these; most of them do not come back.
#[expect(clippy::panic, reason = "a test asks for it")]
pub(crate) fn misbehave(ctx: &Context, mode: &str, n: u64) -> bool {
    match mode {
        "loop" => {
            let mut turns = 0_u64;
            loop {
                turns = black_box(turns.wrapping_add(1));
            }
        }
        "spin" => {
            let until = Instant::now() + Duration::from_millis(n);
            while Instant::now() < until {}
        }
        "spin-until-cancelled" => while !ctx.cancelled() {},
        "sleep" => std::thread::sleep(Duration::from_millis(n)),
        "leak" => loop {
            std::mem::forget(black_box(vec![1_u8; 1 << 20]));
        },
        "alloc" => {
            black_box(vec![1_u8; mib(n)]);
        }
        "panic" => panic!("asked to panic"),
        "panic-huge" => panic!("{}", "x".repeat(mib(n))),
        "abort" => std::process::abort(),
        "exit" => std::process::exit(i32::try_from(n).unwrap_or(1)),
        "index" => {
            black_box([0_u8; 4][black_box(usize::try_from(n).unwrap_or(9).max(4))]);
        }
        "stack" => {
            black_box(deeper(0));
        }
        "logs" => {
            for i in 0..n {
                log::write(Level::Info, &format!("line {i}"), &[("i", &i.to_string())]);
            }
        }
        "log-huge" => log::write(Level::Info, &"x".repeat(mib(n)), &[]),
        "stdout" => (0..n).for_each(|i| {
            // A closed or full pipe is the host's business.
            let _ = writeln!(std::io::stdout(), "line {i}");
        }),
        "stderr" => (0..n).for_each(|i| {
            let _ = writeln!(std::io::stderr(), "line {i}");
        }),
        "host-calls" => (0..n).for_each(|_| {
            black_box(ctx.attempt());
        }),
        "handles" => {
            let kept: Vec<_> = (0..n).map(|_| ctx.primary()).collect();
            black_box(kept.len());
        }
        _ => return false,
    }
    true
}

#[expect(unconditional_recursion, reason = "it overflows the stack")]
fn deeper(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    deeper(depth + 1) + black_box(frame)[0]
}

fn mib(n: u64) -> usize {
    usize::try_from(n << 20).unwrap_or(usize::MAX)
}
