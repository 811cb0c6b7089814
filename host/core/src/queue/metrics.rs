//! The queue's metrics, with the names, labels and buckets of controller-runtime.

/// The queue's metrics.
pub struct QueueMetrics {}

impl QueueMetrics {
    /// Registers them; an error when they are registered already.
    pub fn new(registry: &prometheus::Registry) -> Result<Self, prometheus::Error> {
        unimplemented!()
    }
}
