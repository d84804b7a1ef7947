//! What can go wrong between a model and a device.

/// An error of the tensor layer. Every variant names the operator, tensor or figure that is at fault.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// A weight does not have the shape or size that its use needs.
    #[error("tensor `{name}`: {found}, expected {expected}")]
    Weight {
        /// Name of the tensor in its file.
        name: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A plan was recorded with operands that do not fit each other.
    #[error("operator {op}: {message}")]
    Plan {
        /// Name of the operator.
        op: &'static str,
        /// What does not fit.
        message: String,
    },
    /// A cache was asked for in a shape that no backend has.
    #[error("cache: {0}")]
    Cache(String),
    /// A step does not fit the plan or the caches it is submitted to.
    #[error("step: {0}")]
    Step(String),
    /// Memory could not be had.
    #[error("{what} needs {need} bytes: {reason}")]
    Memory {
        /// What the memory is for.
        what: String,
        /// How many bytes.
        need: u64,
        /// Why they could not be had.
        reason: String,
    },
    /// The device cannot do what was asked for.
    #[error("{backend}: {message}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What it cannot do.
        message: String,
    },
}

/// Result of the tensor layer.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;
