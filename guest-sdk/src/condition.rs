//! Conditions, as they are set and as they are read.

use serde::{Deserialize, Serialize};

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    #[default]
    Unknown,
}

/// A condition of an object, as read from its `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// For example `Available`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// A `CamelCase` word.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// RFC 3339; see [`crate::time::parse_rfc3339`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// The generation that it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<u64>,
}

impl ConditionStatus {
    /// As Kubernetes writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

impl Condition {
    /// Whether its status is `True`.
    pub fn holds(&self) -> bool {
        self.status == ConditionStatus::True
    }
}
