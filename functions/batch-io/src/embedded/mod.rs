//! The ports on one machine: SQLite for records and queues, files for blobs.
