//! Nodes that fell back to another device than the one their graph was loaded on.

use std::{collections::BTreeSet, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of nodes that are listed.
const MAX_LISTED: usize = 32;

/// Maximum number of nodes in a sentence, each with a different reason.
const MAX_NAMED: usize = 3;

/// Nodes of a model that fell back to another device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FallbackNodes {
    /// Number of nodes, listed or not.
    pub count: usize,
    /// The first nodes.
    pub nodes: Vec<FallbackNode>,
}

/// A node that fell back to another device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FallbackNode {
    /// File name of the graph.
    pub graph: String,
    /// Path of the node.
    pub path: String,
    /// Operator type.
    pub op: String,
    /// Reason.
    pub why: String,
    /// The next step, if it is known.
    pub fix: Option<String>,
}

impl FallbackNodes {
    /// Returns whether no node fell back.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a node, and lists it while there is room.
    pub(crate) fn push(&mut self, node: FallbackNode) {
        self.count += 1;
        if self.nodes.len() < MAX_LISTED {
            self.nodes.push(node);
        }
    }

    /// Returns the nodes of both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.count += other.count;
        self.nodes.extend(other.nodes);
        self.nodes.truncate(MAX_LISTED);
        self
    }

    /// Returns the fixes for the reasons in the text, without duplicates.
    pub fn fix(&self) -> Option<String> {
        let fixes = self.named().filter_map(|node| node.fix.as_deref());
        let mut seen = BTreeSet::new();
        let fixes: Vec<&str> = fixes.filter(|fix| seen.insert(*fix)).collect();
        (!fixes.is_empty()).then(|| fixes.join("; "))
    }

    /// Returns the first node of each reason.
    fn named(&self) -> impl Iterator<Item = &FallbackNode> {
        let mut seen = BTreeSet::new();
        self.nodes.iter().filter(move |node| seen.insert((&node.op, &node.why))).take(MAX_NAMED)
    }
}

impl fmt::Display for FallbackNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut named = 0;
        for FallbackNode { path, op, why, .. } in self.named() {
            let separator = if named > 0 { "; " } else { "" };
            write!(f, "{separator}{path} ({op}): {why}")?;
            named += 1;
        }
        match self.count - named {
            0 => Ok(()),
            1 => f.write_str("; and 1 more node"),
            more => write!(f, "; and {more} more nodes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_named_once_and_the_rest_is_counted() {
        let mut nodes = FallbackNodes::default();
        let node = |path: &str, why: &str, fix: Option<&str>| FallbackNode {
            graph: "g.onnx".to_owned(),
            path: path.to_owned(),
            op: "Op".to_owned(),
            why: why.to_owned(),
            fix: fix.map(str::to_owned),
        };
        nodes.push(node("/a", "it is odd", Some("replace it")));
        assert_eq!(nodes.to_string(), "/a (Op): it is odd");
        for index in 0..MAX_LISTED {
            nodes.push(node(&format!("/b.{index}"), "it is even", Some("replace it")));
        }
        assert_eq!((nodes.count, nodes.nodes.len()), (MAX_LISTED + 1, MAX_LISTED));
        assert_eq!(nodes.to_string(), "/a (Op): it is odd; /b.0 (Op): it is even; and 31 more nodes");
        assert_eq!(nodes.fix().as_deref(), Some("replace it"));
        assert_eq!(FallbackNodes::default().fix(), None);
    }
}
