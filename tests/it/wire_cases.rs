//! Files as users really write them, and what each must lead to: `cases/wire`.

use system_tests::environment::model;
use system_tests::scenario;
use system_tests::service::{Options, Service};

#[test]
fn every_wire_case_leads_to_what_it_says() {
    if model().is_none() {
        return;
    }
    let service = Service::start(Options {
        log: "warn".to_owned(),
        ..Options::default()
    });
    scenario::wire_cases(&service);
}
