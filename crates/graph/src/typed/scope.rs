//! Paths of modules: where nodes stand in the graph, and which parameters they read.

use std::fmt;

/// The path of a module, such as `/layers.3/attn/q_proj`. Its nodes are named after it, and so are its parameters:
/// `layers.3.attn.q_proj.weight`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    path: String,
}

impl Scope {
    /// The whole model.
    pub fn root() -> Self {
        Self::default()
    }

    /// A module of this one.
    #[must_use]
    pub fn child(&self, name: impl fmt::Display) -> Self {
        Self { path: format!("{}/{name}", self.path) }
    }

    /// The name of a node or constant directly below: `/layers.3/attn/q_proj/MatMul`.
    pub fn node(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// The name of a parameter of this module: `layers.3.attn.q_proj.weight`.
    pub fn parameter(&self, name: &str) -> String {
        format!("{}.{name}", self.module())
    }

    /// The module as checkpoints spell it: `layers.3.attn.q_proj`.
    pub fn module(&self) -> String {
        self.path.trim_start_matches('/').replace('/', ".")
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_parameters_share_a_path() {
        let scope = Scope::root().child("layers.3").child("attn").child("q_proj");
        assert_eq!(scope.to_string(), "/layers.3/attn/q_proj");
        assert_eq!(scope.node("MatMul"), "/layers.3/attn/q_proj/MatMul");
        assert_eq!(scope.parameter("weight"), "layers.3.attn.q_proj.weight");
        assert_eq!(Scope::root().child("norm").parameter("bias"), "norm.bias");
    }
}
