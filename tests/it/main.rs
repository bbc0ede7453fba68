//! System tests: the service as its users see it, with a real model and the real SDKs.

mod architecture;
mod cancel;
mod chaos;
mod command;
mod cost;
mod expiry;
mod faults;
mod infra;
mod memory;
mod models;
mod scenarios;
mod sdk;
mod served;
mod wire_cases;
