//! Paths of modules, which name their nodes in the graph and their parameters.

use std::fmt;

/// Path of a module, such as `/layers.3/attn/q_proj`. It is the prefix of the names of its nodes and, with dots, of its
/// parameters: `layers.3.attn.q_proj.weight`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    path: String,
}

impl Scope {
    /// Returns the path of the whole model.
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the path of a submodule.
    #[must_use]
    pub fn child(&self, name: impl fmt::Display) -> Self {
        Self { path: format!("{}/{name}", self.path) }
    }

    /// Returns the name of a node or constant directly below: `/layers.3/attn/q_proj/MatMul`.
    pub fn node(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Returns the name of a parameter of this module: `layers.3.attn.q_proj.weight`.
    pub fn parameter(&self, name: &str) -> String {
        format!("{}.{name}", self.module())
    }

    /// Returns the module's name in checkpoints: `layers.3.attn.q_proj`.
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
