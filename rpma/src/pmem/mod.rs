//! pmem
