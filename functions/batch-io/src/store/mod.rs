//! Typed access to the records: keys, item forms and conditional updates, written once over the ports.
