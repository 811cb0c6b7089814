//! What is printed: one line for each figure, with its target.

use std::fmt;

/// All figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    what: String,
    value: String,
    target: Option<(String, bool)>,
}

impl Table {
    /// A figure without a target.
    pub(crate) fn figure(&mut self, what: &str, value: impl Into<String>) {
        self.0.push(Row { what: what.to_owned(), value: value.into(), target: None });
    }

    /// A figure that must not be above `most`.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, most: f64, unit: &str) {
        self.target(what, value, unit, format!("≤ {}", number(most)), value <= most);
    }

    /// A figure that must not be below `least`.
    pub(crate) fn at_least(&mut self, what: &str, value: f64, least: f64, unit: &str) {
        self.target(what, value, unit, format!("≥ {}", number(least)), value >= least);
    }

    fn target(&mut self, what: &str, value: f64, unit: &str, target: String, met: bool) {
        let value = format!("{} {unit}", number(value));
        self.0.push(Row { what: what.to_owned(), value, target: Some((target, met)) });
    }

    /// How many targets were missed.
    pub(crate) fn missed(&self) -> usize {
        self.0.iter().filter(|row| matches!(row.target, Some((_, false)))).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |cell: fn(&Row) -> &str| self.0.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0);
        let (what, value) = (width(|row| &row.what), width(|row| &row.value));
        for row in &self.0 {
            let target = match &row.target {
                None => String::new(),
                Some((target, met)) => format!("target {target}{}", if *met { "" } else { "   MISSED" }),
            };
            writeln!(f, "{:what$}  {:>value$}  {target}", row.what, row.value)?;
        }
        Ok(())
    }
}

/// Three significant digits, without an exponent.
fn number(value: f64) -> String {
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

/// The value below which this share of the samples lies.
pub(crate) fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = (samples.len() * percent / 100).min(samples.len().saturating_sub(1));
    samples.get(index).copied().unwrap_or(f64::NAN)
}

/// Prints the result.
#[expect(clippy::print_stdout, reason = "a command speaks to who ran it")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Says what is being measured.
#[expect(clippy::print_stderr, reason = "what takes over a second shows its progress")]
pub(crate) fn progress(text: &str) {
    eprintln!("bench: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_met_or_missed() {
        let mut table = Table::default();
        table.at_most("a", 1.0, 2.0, "s");
        table.at_least("b", 1.5, 1.4, "×");
        assert_eq!(table.missed(), 0);
        table.at_most("c", 2.1, 2.0, "s");
        assert_eq!(table.missed(), 1);
        assert!(table.to_string().contains("target ≤ 2.00   MISSED"), "{table}");
    }

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut samples, 50).to_string(), "50");
        assert_eq!(percentile(&mut samples, 99).to_string(), "99");
        assert!(percentile(&mut [], 50).is_nan());
    }
}
