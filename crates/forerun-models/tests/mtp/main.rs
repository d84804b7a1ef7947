//! MTP blocks in every form that files give them, against loops that are written after the block's definition; what is
//! refused; and that a row's guess does not depend on the rows beside it.

#[path = "../common/fake.rs"]
mod fake;
mod oracle;
mod refused;
mod rows;
mod runner;
mod variants;
