//! The relay as its users run it: the binary, on real servers, with faults.

mod crashes;
