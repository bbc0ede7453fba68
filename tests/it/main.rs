//! System tests: the service as its users see it, with a real model and the real SDKs.

mod architecture;
mod cancel;
mod chaos;
mod command;
mod expiry;
mod faults;
mod memory;
mod models;
mod sdk;
mod wire_cases;
