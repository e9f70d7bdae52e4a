//! What this host is, as the files of sysfs and procfs show it.
