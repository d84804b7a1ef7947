//! Files of weights made from other files.
