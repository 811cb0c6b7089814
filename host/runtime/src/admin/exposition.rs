//! The text that Prometheus scrapes.
//!
//! Invariant: bounds of buckets are written as Go writes them (`1e-08`, not `0.00000001`), since a
//! scraper takes `le` as a text, and a dashboard's series would break where a Go controller is
//! replaced.

use prometheus::proto::MetricFamily;
use prometheus::{Error, TextEncoder};

/// Bounds below this are written with an exponent in Go.
const LEAST_PLAIN: f64 = 1e-4;

const BOUND: &str = "le=\"";

/// Writes metrics as text.
pub(super) fn text(families: &[MetricFamily]) -> Result<String, Error> {
    TextEncoder::new().encode_to_string(families).map(|text| as_go(&text))
}

fn as_go(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(BOUND);
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        out.push_str(BOUND);
        let (number, rest) = part.split_once('"').unwrap_or((part, ""));
        match number.parse::<f64>() {
            Ok(bound) if bound > 0.0 && bound < LEAST_PLAIN => out.push_str(&exponent(bound)),
            _ => out.push_str(number),
        }
        out.push('"');
        out.push_str(rest);
    }
    out
}

/// With at least two digits in the exponent.
fn exponent(bound: f64) -> String {
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Histogram, HistogramOpts, Registry, exponential_buckets};

    #[test]
    fn bounds_are_written_as_go_writes_them() {
        let registry = Registry::new();
        let options = HistogramOpts::new("h", "help").buckets(exponential_buckets(1e-8, 10.0, 12).unwrap());
        registry.register(Box::new(Histogram::with_opts(options).unwrap())).unwrap();
        let text = super::text(&registry.gather()).unwrap();
        let bounds: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("h_bucket{le=\"")?.strip_suffix("\"} 0"))
            .collect();
        let go = [
            "1e-08",
            "1e-07",
            "1e-06",
            "9.999999999999999e-06",
            "9.999999999999999e-05",
            "0.001",
            "0.01",
            "0.1",
            "1",
            "10",
            "100",
            "1000",
            "+Inf",
        ];
        assert_eq!(bounds, go);
    }
}
