//! What no part shows by itself.

mod hot_path;
