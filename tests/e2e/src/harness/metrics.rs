//! A scrape of `/metrics`, parsed.

use std::collections::BTreeMap;

/// All samples of one scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    samples: Vec<Sample>,
    /// The type of each family, from its `# TYPE` line.
    pub types: BTreeMap<String, String>,
}

/// One line of a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The series' name, for histograms with `_bucket`, `_sum`, `_count`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

// === impl Metrics ===

impl Metrics {
    /// Reads the text format. Lines that are none are left out.
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                if let Some((name, kind)) = rest.split_once(' ') {
                    metrics.types.insert(name.to_owned(), kind.to_owned());
                }
            } else if let Some(sample) = parse_line(line) {
                metrics.samples.push(sample);
            }
        }
        metrics
    }

    /// The samples of this name with all of these labels.
    pub fn find<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> + 'a {
        self.samples.iter().filter(move |sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        })
    }

    /// Their sum; 0 where there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }

    /// Their sum as a whole number, for counts; 0 where there are none or it is negative.
    pub fn int(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        format!("{:.0}", self.sum(name, labels)).parse().unwrap_or(0)
    }

    /// Their number.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> usize {
        self.find(name, labels).count()
    }

    /// The names of all series, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.iter().map(|sample| sample.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn parse_line(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (name, labels, rest) = match line.split_once('{') {
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, BTreeMap::new(), rest)
        }
        Some((name, rest)) => {
            let (labels, rest) = parse_labels(rest)?;
            (name, labels, rest)
        }
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

fn parse_labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.to_owned(), value);
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_is_read() {
        let metrics = Metrics::parse(
            "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"q\\\"\\\\\\n,}\"} 3\na{x=\"2\"} 4.5\nplain 1e3\ninf +Inf\nnone\n",
        );
        assert_eq!(metrics.types["a"], "counter");
        assert_eq!(metrics.sum("a", &[]).to_bits(), 7.5f64.to_bits());
        assert_eq!(metrics.sum("a", &[("x", "2")]).to_bits(), 4.5f64.to_bits());
        assert_eq!(metrics.find("a", &[("x", "1")]).next().unwrap().labels["y"], "q\"\\\n,}");
        assert_eq!(metrics.sum("plain", &[]).to_bits(), 1000f64.to_bits());
        assert!(metrics.sum("inf", &[]).is_infinite());
        assert_eq!((metrics.count("none", &[]), metrics.int("plain", &[])), (0, 1000));
        assert_eq!(metrics.names(), ["a", "inf", "plain"]);
    }
}
